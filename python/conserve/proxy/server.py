"""Serves the door with uvicorn: says when it is ready, drains before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn

from conserve.errors import ConfigError
from conserve.tls import files_of

from .app import create_app
from .protocol import bounded

if TYPE_CHECKING:
    from fastapi import FastAPI

    from conserve.settings import Settings

    from .door import Door
    from .energy import MakeEnergy

__all__ = ["KEEP_ALIVE_S", "AppServer", "DoorServer", "serve"]

logger = logging.getLogger(__name__)

_BACKLOG: Final = 2048
# Agents pause between turns while their tools run; their connections are worth keeping for a while.
KEEP_ALIVE_S: Final = 75.0


class AppServer(uvicorn.Server):
    """A uvicorn server whose first stop signal drains the door and whose second one stops at once.

    While it drains it still accepts connections, to answer 503 instead of refusing them. It serves the app on `listening`,
    or on the Unix socket `path`; `host` and `port` are what its user connects to, with TLS if `is_tls`. With `tls`, files of
    certificate chain and key, it speaks TLS itself.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str,
        port: int,
        listening: socket.socket | None = None,
        path: str | None = None,
        is_tls: bool = False,
        tls: tuple[Path, Path] | None = None,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        self.door: Door = app.state.door
        scheme = "https" if is_tls or tls is not None else "http"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._on_ready = on_ready
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets = None if listening is None else [listening]
        super().__init__(
            uvicorn.Config(
                app,
                uds=path,
                http=bounded(
                    head_timeout_s=self.door.settings.body_timeout_s,
                    stall_timeout_s=self.door.settings.client_stall_timeout_s,
                ),
                ws="none",
                lifespan="on",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                date_header=True,
                backlog=_BACKLOG,
                ssl_certfile=None if tls is None else tls[0],
                ssl_keyfile=None if tls is None else tls[1],
                timeout_graceful_shutdown=2,
                timeout_keep_alive=int(KEEP_ALIVE_S),
            )
        )

    async def run_here(self) -> None:
        """Serve on this event loop until `stop` or a signal."""
        await self.serve(sockets=self._sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self.ready()

    def ready(self) -> None:
        """Say that turns are served."""
        if self._on_ready is not None:
            self._on_ready(self.url)

    def stop(self) -> None:
        """Drain, then stop. Returns at once; call it on the server's event loop."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """A hangup stops the server too, unless it was to be ignored, as under `nohup`."""
        with super().capture_signals():
            in_main = threading.current_thread() is threading.main_thread()
            if not in_main or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                yield
                return
            before = signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop signal: drain; a second one: stop now, with an error for whom that cuts short."""
        if self._draining is not None or not self.started:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.door.cut_short)
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    async def _drain(self) -> None:
        try:
            await self.door.drain()
        finally:
            self.should_exit = True


class DoorServer(AppServer):
    """The FastAPI door: the app itself serves the turns."""

    def __init__(self, settings: Settings, *, on_ready: Callable[[str], None] | None = None) -> None:
        tls = files_of(settings)
        app = create_app(settings)
        listening = _listen(settings.host, settings.port)
        host, port = listening.getsockname()[:2]
        super().__init__(app, host=host, port=port, listening=listening, tls=tls, on_ready=on_ready)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns Nagle's delay off only for sockets that say so.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def serve(settings: Settings, *, ready_file: Path | None = None, energy: MakeEnergy | None = None) -> None:
    """Serve until a signal; one line on standard output when ready, the same as JSON in `ready_file`.

    `energy` makes what counts the workers' energy. Raises ConfigError, or OSError if the address cannot be had.
    """

    def ready(url: str) -> None:
        if ready_file is not None:
            part = ready_file.with_name(f".{ready_file.name}.part")
            part.write_text(json.dumps({"event": "ready", "url": url, "port": int(url.rpartition(":")[2])}))
            part.replace(ready_file)
        prefillers, decoders, both = len(settings.prefillers), len(settings.decoders), len(settings.both)
        fleet = f"prefillers: {prefillers}, decoders: {decoders}" + (f", both: {both}" if both else "")
        sys.stdout.write(f"conserve serves {url}/v1 ({fleet})\n")
        sys.stdout.flush()

    _take_open_files()
    server = _server(settings, ready)
    if energy is not None:
        server.door.energy = energy(server.door.router, settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(server.run_here())
        except KeyboardInterrupt:
            return


def _server(settings: Settings, ready: Callable[[str], None]) -> AppServer:
    if settings.door == "fastapi":
        return DoorServer(settings, on_ready=ready)
    try:
        from .native import NativeServer
    except ImportError as missing:
        raise ConfigError(
            f"door native: this build of conserve has no native door ({missing}); use --door fastapi",
            key="door",
            accepted="fastapi",
        ) from None

    return NativeServer(settings, on_ready=ready)


def _take_open_files() -> None:
    """Take as many open files as the system lets us: each stream needs two, and the usual soft limit is 1024."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS says "no limit" and then refuses it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
