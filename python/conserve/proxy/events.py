"""Follows workers' KV events (ZeroMQ, as vLLM publishes them) and hands each batch to the router.

Promises: a worker's batches reach the router in order; what was missed, also before we came, is asked for again, and what
cannot be had is given up aloud. A worker that floods, stops or talks nonsense holds up neither the door nor the others.
Leaves to others: what batches say (the router), and when a worker is followed (`watch`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from conserve.errors import ConfigError

if TYPE_CHECKING:
    import zmq.asyncio

    from conserve._core import Router

__all__ = ["Ears"]

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 5.0  # between two pieces of a replay
_REPLAY_S: Final = 60.0  # for all of one
_QUEUED: Final = (
    10_000  # batches held while a replay is read; what comes then is dropped, and asked for again
)
_LARGEST_BYTES: Final = 64 * 1024 * 1024  # of one frame
_HEARTBEAT_MS: Final = 5_000  # a peer that is silent to it is connected to anew
_AT_ONCE: Final = 16  # batches between two turns of the event loop
_END: Final = (-1).to_bytes(8, "big", signed=True)
_NOTHING: Final = b"\x93\x00\x90\x00"  # a batch without events


class Ears:
    """What one door hears with: ZeroMQ, started when the first worker is followed."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._context: zmq.asyncio.Context | None = None

    @staticmethod
    def require(worker: str) -> None:
        """Raise ConfigError unless KV events can be followed."""
        try:
            import zmq.asyncio  # noqa: F401
        except ImportError as cause:
            raise ConfigError(
                f"worker {worker}: kv_events needs ZeroMQ: pip install pyzmq", key="kv_events"
            ) from cause

    async def follow(self, worker: int, *, label: str, events: str, replay: str | None) -> None:
        """Hear `events` until cancelled or the worker is lost. `worker` is its id, `label` what logs call it."""
        import zmq.asyncio

        subscriber = self._socket(zmq.SUB, events)
        try:
            subscriber.subscribe(b"")
            subscriber.connect(events)
            hearing = _Hearing(self._router, worker, label)
            if replay is not None:
                await self._ask(hearing, replay, 0)
            heard = 0
            while True:
                frames = await subscriber.recv_multipart()
                if len(frames) == 3 and _numbered(frames[1]):
                    number = int.from_bytes(frames[1], "big")
                    missing = hearing.live(number, frames[2])
                    if missing is not None:
                        if replay is not None:
                            await self._ask(hearing, replay, missing)
                        hearing.last_resort(number, frames[2])
                else:
                    hearing.nonsense("a message that is no batch")
                heard += 1
                if heard % _AT_ONCE == 0:
                    # What is queued is received without waiting: others must have their turn.
                    await asyncio.sleep(0)
        except KeyError:
            logger.info("%s is lost: its KV events are followed no more", label)
        finally:
            subscriber.close(linger=0)

    def close(self) -> None:
        """Let go of ZeroMQ; nobody follows any more."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _socket(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        import zmq.asyncio

        if self._context is None:
            self._context = zmq.asyncio.Context()
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, _QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        return socket

    async def _ask(self, hearing: _Hearing, replay: str, start: int) -> None:
        """Ask for the batches from `start` on, of which the worker repeats those that it still has."""
        import zmq

        # A socket of its own for each question: no late answer to an earlier one is taken for its answer.
        socket = self._socket(zmq.DEALER, replay)
        try:
            socket.connect(replay)
            async with asyncio.timeout(_REPLAY_S):
                async with asyncio.timeout(_SILENCE_S):
                    await socket.send_multipart([b"", start.to_bytes(8, "big")])
                heard = 0
                while True:
                    async with asyncio.timeout(_SILENCE_S):
                        # vLLM 0.32 puts the topic before the number, others do not.
                        frames = await socket.recv_multipart()
                    if len(frames) >= 3 and frames[-2] == _END:
                        return
                    if len(frames) < 3 or not _numbered(frames[-2]):
                        hearing.nonsense("a replay that is none")
                        return
                    hearing.repeated(int.from_bytes(frames[-2], "big"), frames[-1])
                    heard += 1
                    if heard % _AT_ONCE == 0:
                        await asyncio.sleep(0)
        except TimeoutError:
            logger.warning("%s did not repeat its KV events at %s in time", hearing.label, replay)
        finally:
            socket.close(linger=0)


def _numbered(frame: bytes) -> bool:
    # No publisher gets as far as 2**63.
    return len(frame) == 8 and frame[0] < 0x80


class _Hearing:
    """Brings the batches of one worker to the router in their order."""

    __slots__ = ("_again", "_complained", "_last", "_next", "_router", "_worker", "label")

    def __init__(self, router: Router, worker: int, label: str) -> None:
        self._router = router
        self._worker = worker
        self.label = label
        self._last = -1
        self._next = 0
        self._again = False
        self._complained = False

    def live(self, number: int, batch: bytes) -> int | None:
        """A batch as it was published; gives the number from which on others are missing before it."""
        if number <= self._last:
            # Published numbers only rise: the publisher started again, and with it an empty cache.
            logger.warning("%s numbers its KV events anew", self.label)
            self._again = True
            self._last = number
            return 0
        self._last = number
        # A replay may have brought it before; a number 0 come twice would be a new beginning to the router.
        return None if number < self._next else self._take(number, batch)

    def repeated(self, number: int, batch: bytes) -> None:
        """A batch of a replay, which goes on from where we were unless the worker has forgotten that."""
        self.last_resort(number, batch)

    def last_resort(self, number: int, batch: bytes) -> None:
        """A batch that cannot wait for those before it."""
        missing = self._take(number, batch)
        if missing is not None:
            logger.warning("%s: %d batches of KV events are lost", self.label, number - missing)
            self._router.give_up_events(self._worker, number)
            self._take(number, batch)

    def nonsense(self, what: str) -> None:
        """Say once that the worker sends what cannot be used."""
        if not self._complained:
            self._complained = True
            logger.warning("%s: its KV events are not all usable: %s", self.label, what)

    def _take(self, number: int, batch: bytes) -> int | None:
        """Give one batch to the router; the number from which on others are missing, or None."""
        if self._again:
            self._again = False
            self._next = 0
            if number != 0:
                # The router knows a new beginning by its number 0, which nobody has any more.
                self._router.observe_events(self._worker, 0, _NOTHING)
        try:
            missing = self._router.observe_events(self._worker, number, batch)
        except ValueError as error:
            self.nonsense(f"batch {number}: {error}")
            self._router.give_up_events(self._worker, number + 1)
            missing = None
        if missing is None:
            self._next = max(self._next, number + 1)
        return missing
