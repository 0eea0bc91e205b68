"""The prefiller's end: a listening socket, one thread for each decoder that fetches."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from conserve_workers.tiny.errors import HandoffError
from conserve_workers.tiny.handoff import wire
from conserve_workers.tiny.handoff.leases import LeaseTable
from conserve_workers.tiny.kv.store import KvStore

logger = logging.getLogger(__name__)

_FIRST_FRAME_S = 5.0
_MOST_CONNECTIONS = 64


class Sender:
    """Serves leased blocks. `on_sent` and `on_refused` are called from its threads."""

    def __init__(
        self,
        *,
        engine_id: str,
        store: KvStore,
        leases: LeaseTable,
        host: str,
        port: int,
        timeout_s: float,
        on_sent: Callable[[list[int], int], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._engine_id = engine_id
        self._store = store
        self._leases = leases
        self._timeout_s = timeout_s
        self._on_sent = on_sent
        self._on_refused = on_refused
        self._slots = threading.Semaphore(_MOST_CONNECTIONS)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="handoff-accept", daemon=True)

    def start(self) -> None:
        """Begin to accept connections."""
        self._thread.start()

    def close(self) -> None:
        """Stop accepting; transfers under way end with the process."""
        with suppress(OSError):  # some systems refuse this on a listening socket; there, closing is enough
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _peer = self._listener.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="handoff-send", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_FIRST_FRAME_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                header, _size = wire.receive(connection)
                connection.settimeout(self._timeout_s)
                self._answer(connection, header)
        except (OSError, HandoffError) as error:
            logger.warning("handoff broken off: %s", error)
        finally:
            self._slots.release()

    def _answer(self, connection: socket.socket, header: dict[str, Any]) -> None:
        request_id = str(header.get("request_id"))
        if header.get("engine_id") != self._engine_id:
            self._refuse(
                connection, f"this worker is engine {self._engine_id}, not {header.get('engine_id')}"
            )
            return
        opened = self._leases.open(request_id, now_s=time.monotonic())
        if opened is None:
            self._refuse(
                connection, f"no blocks are kept for request {request_id}; its lease ended or it was fetched"
            )
            return
        blocks, tokens = opened
        sent: int | None = None
        try:
            first, count = header.get("first"), header.get("count")
            if not isinstance(first, int) or not isinstance(count, int) or first < 0 or count < 0:
                self._refuse(connection, "first and count must not be negative")
            elif first + count > len(blocks):
                self._refuse(
                    connection, f"request {request_id} has {len(blocks)} blocks, not {first + count}"
                )
            elif header.get("tokens") != tokens:
                self._refuse(
                    connection, f"request {request_id} has {tokens} tokens, not {header.get('tokens')}"
                )
            else:
                sent = self._send(connection, blocks[first : first + count], tokens)
        finally:
            given_back = self._leases.close(request_id, fetched=sent is not None)
            if sent is not None:
                self._on_sent(given_back, sent)

    def _send(self, connection: socket.socket, blocks: list[int], tokens: int) -> int:
        store = self._store
        wire.send(
            connection, {"ok": True, "tokens": tokens, "dtype": str(store.tensor.dtype), "block": store.shape}
        )
        piece = wire.blocks_in_a_piece(store.block_bytes)
        total = 0
        for start in range(0, len(blocks), piece):
            part = blocks[start : start + piece]
            values = memoryview(store.read(part).numpy().view("uint8").data).cast("B")
            wire.send(connection, {"first": start, "count": len(part)}, values)
            total += values.nbytes
        header, _size = wire.receive(connection)
        if header.get("done") is not True:
            raise HandoffError("the decoder did not confirm")
        return total

    def _refuse(self, connection: socket.socket, message: str) -> None:
        self._on_refused()
        wire.send(connection, {"ok": False, "message": message})
