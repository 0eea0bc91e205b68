"""What the routes of one app share, from the app's start to its end: router, dispatcher, connections, counters.

Promises: nothing is opened before `open` and everything is closed by `close`, on the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from conserve.tls import trust_of

from .energy import Energy
from .metrics import DoorMetrics
from .roles import RoleLog
from .upstream import Upstreams
from .watch import Watch

if TYPE_CHECKING:
    from conserve._core import Dispatcher, Router
    from conserve.settings import Settings

    from .driver import Drive

__all__ = ["Door"]

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.25
_SLOWLY_EVERY_TICKS: Final = 40


class Door:
    """One door in front of one router."""

    def __init__(self, router: Router, settings: Settings) -> None:
        self.router = router
        self.settings = settings
        self.dispatcher: Dispatcher = settings.dispatcher(router)
        self.metrics = DoorMetrics()
        self.drives: set[Drive] = set()
        self.draining = False
        self._roles = RoleLog(router)
        self._idle = asyncio.Event()
        self._upstreams: Upstreams | None = None
        self.watch = Watch(router, self.dispatcher, settings)
        self._clock: asyncio.Task[None] | None = None
        self.energy: Energy | None = None
        """To be set before `open`, where somebody counts."""

    @property
    def upstreams(self) -> Upstreams:
        """The connections to the workers; RuntimeError outside the app's lifespan."""
        if self._upstreams is None:
            raise RuntimeError(
                "the door is not open: the app's lifespan did not run; include openai_routes(...) in the app that "
                "the server runs, not in one that is mounted below it"
            )
        return self._upstreams

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Open on entering, close on leaving."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> None:
        """Open connections and begin to watch the workers; returns once each was asked for the first time."""
        self._upstreams = Upstreams(trust=trust_of(self.settings))
        self._clock = asyncio.create_task(self._tick(), name="conserve-tick")
        await self.watch.start(self._upstreams)
        if self.energy is not None:
            await asyncio.to_thread(self.energy.start)
        if all(each.role == "prefiller" for each in self.watch.workers):
            logger.warning(
                "no decoder is set: give Settings(decoders=...) or CONSERVE_DECODERS; every turn will get 503"
            )

    async def close(self) -> None:
        """End what is still under way and close everything."""
        self.draining = True
        self.cut_short()
        await self.finished(timeout_s=1.0)
        await self.watch.stop()
        if self.energy is not None:
            await asyncio.to_thread(self.energy.stop)
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)
        if self._upstreams is not None:
            await self._upstreams.close()
            self._upstreams = None

    @property
    def in_flight(self) -> int:
        """Requests being served, waiting ones included."""
        return len(self.drives)

    def counted(self) -> DoorMetrics:
        """What was counted so far."""
        return self.metrics

    def entered(self, drive: Drive) -> None:
        """A request is being served."""
        self.drives.add(drive)

    def left(self, drive: Drive) -> None:
        """It ended."""
        self.drives.discard(drive)
        if not self.drives:
            self._idle.set()

    async def finished(self, *, timeout_s: float) -> bool:
        """Wait until no request is being served; False if some still are after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.drives:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def drain(self) -> None:
        """Refuse new turns, let those under way finish within `shutdown_timeout_s`, then end them with an error."""
        self.draining = True
        logger.info(
            "draining: %d requests under way, %g s for them",
            self.in_flight,
            self.settings.shutdown_timeout_s,
        )
        if not await self.finished(timeout_s=self.settings.shutdown_timeout_s):
            self.cut_short()
            await self.finished(timeout_s=1.0)

    def cut_short(self) -> None:
        """End what is under way now, each request with an error for its client."""
        if self.drives:
            logger.warning("ending %d requests that did not finish in time", len(self.drives))
        for drive in list(self.drives):
            drive.shut_down()

    def ready(self) -> str | None:
        """None while turns can be served, else why not."""
        if self.draining:
            return "the router is shutting down"
        decoders = [
            worker
            for worker in self.router.snapshot().workers
            if worker.role != "prefiller" and worker.health != "lost"
        ]
        if not decoders:
            return "no decoder has joined"
        if all(worker.draining or worker.health != "ready" for worker in decoders):
            return "no decoder is ready"
        if all(not worker.kv_blocks for worker in decoders):
            return "no decoder has told its KV capacity; give kv_blocks, or see its /metrics"
        return None

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_S)
            ticks += 1
            try:
                self.router.tick()
                if ticks % _SLOWLY_EVERY_TICKS == 0:
                    await self._sweep()
                    self._roles.look()
            except Exception:
                logger.exception("the router's clock failed; it goes on")

    async def _sweep(self) -> None:
        # In a thread: sweeping a million conversations takes a while, and turns go on meanwhile.
        swept = await asyncio.to_thread(self.router.sweep)
        if swept.conversations:
            logger.info("swept %d idle conversations, %d blocks", swept.conversations, swept.blocks)
