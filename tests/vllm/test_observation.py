"""KV events of a real vLLM: what it stored, what it evicted from under an idle conversation, and what was missed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.vllm.door import door_over
from tests.vllm.servers import BLOCK_SIZE, Forge, alone, completion, token_ids
from tests.vllm.small import KV_BLOCKS, Small

RESIDENT = "conserve_kv_blocks_resident{small}"
DIFFERENCE = "conserve_kv_blocks_booked_minus_resident{small}"
EVICTIONS = "conserve_idle_kv_evictions_total"
EVICTED = "conserve_idle_kv_evicted_blocks_total"
RECOMPUTED = "conserve_recomputed_tokens_total"
MISSED = "conserve_worker_kv_event_batches_missed_total{small}"
ANSWER = 16


def whole(tokens: int) -> int:
    """Blocks that so many tokens fill whole: only those are cached. The last token's KV is never computed."""
    return (tokens - 1) // BLOCK_SIZE


def test_what_an_idle_conversation_loses_is_seen_and_its_booking_follows(
    forge: Forge, small: Small, tmp_path: Path
) -> None:
    with door_over(forge, tmp_path / "door.log", decoders=[small.name], options=small.options()) as door:
        prompt = token_ids(401, 1100)
        first = door.turn(completion(prompt), "idle")
        there = whole(1100 + ANSWER)
        door.await_equal(RESIDENT, there)
        booked = door.row(small.name)["booked_blocks"]
        assert booked == there + 1, "the last block is not full and so not cached"
        assert door.counter(DIFFERENCE) == 1

        small.intrude(402, 40 * BLOCK_SIZE)
        # It needs 40 blocks, of which those that were free are not evicted from anybody.
        lost = 40 - (KV_BLOCKS - there)
        door.await_equal(EVICTED, lost)
        assert door.counter(EVICTIONS) >= 1
        row = door.row(small.name)
        assert row["booked_blocks"] == booked - lost, "the booking follows"
        assert row["idle_evicted_blocks"] == lost
        door.await_equal(RESIDENT, there - lost + 40)
        assert door.counter(DIFFERENCE) == row["booked_blocks"] - (there - lost + 40)
        assert door.counter(RECOMPUTED) == 0

        before = small.computed()
        prompt = [*prompt, *first.token_ids, *token_ids(403, 20)]
        second = door.turn(completion(prompt), "idle")
        assert second.token_ids == alone(forge, prompt)
        assert door.counter(RECOMPUTED) == lost * BLOCK_SIZE, "what was lost is computed again and counted"
        found = (there - lost) * BLOCK_SIZE
        assert small.computed() - before == len(prompt) - found, "and the engine says the same"
        assert door.row(small.name)["booked_blocks"] == -(-(len(prompt) + ANSWER) // BLOCK_SIZE)
        assert door.counter(MISSED) == 0
        door.assert_balanced()


def test_batches_missed_are_had_again(forge: Forge, small: Small, tmp_path: Path) -> None:
    with (
        relay(small.events_port) as line,
        door_over(
            forge,
            tmp_path / "door.log",
            decoders=[small.name],
            options=small.options(events_port=line.port),
        ) as door,
    ):
        door.turn(completion(token_ids(411, 400)), "idle")
        door.await_equal(RESIDENT, whole(400 + ANSWER))
        line.cut()
        second = door.turn(completion(token_ids(412, 500)), "meanwhile")
        assert second.status == 200
        assert door.counter(RESIDENT) == whole(400 + ANSWER), "nobody told"
        line.mend()
        there = whole(400 + ANSWER) + whole(500 + ANSWER)
        # Only a batch that comes shows that others are missing, and none comes before the line is up again.
        intruders = 0
        while door.counter(RESIDENT) == whole(400 + ANSWER):
            assert intruders < 20, "the door does not hear again"
            small.intrude(1413 + intruders, BLOCK_SIZE + 1)
            intruders += 1
        door.await_equal(RESIDENT, there + intruders)
        assert door.counter(MISSED) == 0
        small.forget()
        small.intrude(414, 2 * BLOCK_SIZE + 1)
        door.await_equal(RESIDENT, 2)
        assert door.counter(EVICTED) == there, "a cache that is emptied is lost by all who were idle"
        # Of each, the block that was not full yet is still booked.
        assert door.row(small.name)["booked_blocks"] == 2
        door.assert_balanced()
    # A router that comes late is told what happened before, and finds the same.
    with door_over(forge, tmp_path / "late.log", decoders=[small.name], options=small.options()) as late:
        late.await_equal(RESIDENT, 2)
        assert late.counter(MISSED) == 0


class Relay:
    """Passes bytes on to a port until it is cut; `mend` takes connections again."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accept()

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                with self._lock:
                    self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        # accept() in another thread does not notice a close.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open.clear()

    def mend(self) -> None:
        """Listen again at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accept()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while piece := one.recv(65_536):
            other.sendall(piece)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(to: int) -> Iterator[Relay]:
    """A relay for the length of the block."""
    made = Relay(to)
    try:
        yield made
    finally:
        made.cut()
