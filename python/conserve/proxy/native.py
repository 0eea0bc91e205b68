"""The native door: turns are served in Rust, everything else by the app behind a Unix socket.

Promises: the same answers, counters and log lines as the FastAPI door, whose control plane and watch it shares.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conserve._core import NativeDoor
from conserve.tls import files_of

from .app import app_of
from .decisions import is_told, say
from .door import Door
from .metrics import DoorMetrics
from .server import KEEP_ALIVE_S, AppServer

if TYPE_CHECKING:
    from conserve._core import Router
    from conserve.settings import Settings

__all__ = ["NativeFront", "NativeServer"]

# The driver's lines go where those of the FastAPI door's driver go.
logger = logging.getLogger("conserve.proxy.driver")

_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING}
_LINES_WAIT_S: Final = 1.0


class NativeFront(Door):
    """A door whose turns are served by `native`. Turns that reach the app all the same are served by it too."""

    def __init__(self, router: Router, settings: Settings) -> None:
        tls = files_of(settings)
        super().__init__(router, settings)
        # Nobody else may enter the folder, so nobody else can connect to the socket in it.
        self._folder = Path(tempfile.mkdtemp(prefix="conserve-"))
        self.control_path = str(self._folder / "control")
        try:
            self.native = NativeDoor(
                self.dispatcher,
                host=settings.host,
                port=settings.port,
                control=self.control_path,
                tls=tls,
                worker_ca=settings.worker_ca,
                max_connections=settings.max_connections,
                threads=settings.door_threads,
                body_timeout_s=settings.body_timeout_s,
                client_stall_timeout_s=settings.client_stall_timeout_s,
                keep_alive_s=KEEP_ALIVE_S,
                verbose=is_told(logging.INFO) or logger.isEnabledFor(logging.INFO),
            )
        except BaseException:
            self._remove_folder()
            raise
        self._log = threading.Thread(target=self._write_log, name="conserve-log", daemon=True)

    async def open(self) -> None:
        """Open what the app needs; the native door starts once the app is served."""
        self._log.start()
        await super().open()

    async def drain(self) -> None:
        """Refuse new turns, let those under way finish within `shutdown_timeout_s`, then end them with an error."""
        self.native.refuse()
        waiting = asyncio.to_thread(self.native.drain, self.settings.shutdown_timeout_s)
        ended, _ = await asyncio.gather(waiting, super().drain())
        if ended:
            logger.warning("ended %d requests that did not finish in time", ended)

    async def close(self) -> None:
        """End what is still under way and close everything."""
        self.draining = True
        await asyncio.to_thread(self.native.stop)
        await super().close()
        if self._log.is_alive():
            await asyncio.to_thread(self._log.join)
        self._remove_folder()

    @property
    def in_flight(self) -> int:
        """Requests being served, waiting ones included."""
        return super().in_flight + self.native.in_flight

    def counted(self) -> DoorMetrics:
        """What both counted so far."""
        counted = DoorMetrics()
        for own in (self.metrics, self.native):
            counted.requests.update(own.requests)
            counted.client_gone.update(own.client_gone)
            counted.upstream_failures.update(own.upstream_failures)
            counted.relayed_bytes += own.relayed_bytes
        return counted

    def _write_log(self) -> None:
        while (lines := self.native.lines(_LINES_WAIT_S)) is not None:
            for line in lines:
                if len(line) == 2:
                    level, text = line
                    logger.log(_LEVELS[level], "%s", text)
                else:
                    say(*line)

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class NativeServer(AppServer):
    """The native door in front, the app behind it."""

    def __init__(self, settings: Settings, *, on_ready: Callable[[str], None] | None = None) -> None:
        self.front = NativeFront(settings.router(empty=True), settings)
        native = self.front.native
        super().__init__(
            app_of(self.front),
            host=native.host,
            port=native.port,
            path=self.front.control_path,
            is_tls=settings.tls_cert is not None,
            on_ready=on_ready,
        )

    def ready(self) -> None:
        """The app is served: begin to serve in front of it."""
        self.front.native.start()
        super().ready()
