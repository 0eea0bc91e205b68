"""Run one worker from its first socket to its exit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from conserve_workers.tiny.engine import Engine
from conserve_workers.tiny.model.load import Loaded, load
from conserve_workers.tiny.options import Options
from conserve_workers.tiny.server.app import create_app
from conserve_workers.tiny.server.service import Service

logger = logging.getLogger(__name__)

_POLL_PARENT_S = 1.0
_LAST_WRITES_S = 2.0


async def serve(options: Options, *, started_s: float) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end, then let requests under way finish for `drain_s` seconds.

    The port is bound and `/health` answers 503 while the model loads; the ready line comes when it is loaded.

    Raises:
        StartError: the model cannot be loaded.
        OSError: the port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.create_server((options.host, options.port), family=family, backlog=512)
    service = Service(options)
    runner = web.AppRunner(
        create_app(service, started_s=started_s), handler_cancellation=True, access_log=None
    )
    await runner.setup()
    await web.SockSite(runner, listener).start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    orphaned = asyncio.Event()
    with _parent_watch(stop, orphaned) if options.idle_exit_with_parent else _nothing():
        loading = _load_in_background(options)
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            # The loading thread cannot be interrupted, and nothing was promised to anybody yet.
            os._exit(0)
        engine = service.begin(loading.result())
        _announce(_ready_line(options, listener, engine, started_s), options.ready_file)
        await stopped
    service.draining = True
    if not orphaned.is_set():
        await asyncio.to_thread(engine.wait_idle, timeout_s=options.drain_s)
    await asyncio.to_thread(engine.stop)
    await runner.cleanup()


def _load_in_background(options: Options) -> asyncio.Future[Loaded]:
    """Load on a daemon thread, so that the process can end meanwhile."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Loaded] = loop.create_future()

    def settle(loaded: Loaded | None, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        elif loaded is not None:
            future.set_result(loaded)

    def work() -> None:
        try:
            loaded = load(options.model, device=options.device, max_model_len=options.max_model_len)
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, loaded, None)

    threading.Thread(target=work, name="load", daemon=True).start()
    return future


def _ready_line(
    options: Options, listener: socket.socket, engine: Engine, started_s: float
) -> dict[str, Any]:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return {
        "event": "ready",
        "url": f"http://{host}:{listener.getsockname()[1]}",
        "role": options.role,
        "model": options.model_name,
        "max_model_len": engine.max_model_len,
        "kv_blocks": options.kv_blocks,
        "block_size": options.block_size,
        "engine_id": engine.engine_id,
        "handoff_port": engine.handoff_port,
        "row_independent": engine.exact,
        "pid": os.getpid(),
        "start_s": round(time.time() - started_s, 3),
    }


def _announce(line: dict[str, Any], ready_file: str | None) -> None:
    text = json.dumps(line) + "\n"
    if ready_file is not None:
        target = Path(ready_file)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(target)
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _parent_watch(stop: asyncio.Event, orphaned: asyncio.Event) -> Iterator[None]:
    """Set both events when the process that started us ends."""
    loop = asyncio.get_running_loop()
    parent = os.getppid()

    def gone() -> None:
        logger.warning("the parent process %d ended", parent)
        orphaned.set()
        stop.set()

    if hasattr(os, "pidfd_open"):
        # Unlike PR_SET_PDEATHSIG this is about the process, not about the thread of it that forked us.
        try:
            handle = os.pidfd_open(parent)
        except ProcessLookupError:
            gone()
            yield
            return

        def ended() -> None:
            loop.remove_reader(handle)
            gone()

        loop.add_reader(handle, ended)
        try:
            yield
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return

    async def poll() -> None:
        while os.getppid() == parent:  # noqa: ASYNC110 - outside Linux nothing tells us
            await asyncio.sleep(_POLL_PARENT_S)
        gone()

    task = loop.create_task(poll())
    try:
        yield
    finally:
        task.cancel()
