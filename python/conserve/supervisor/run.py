"""One fleet from start to end: the workers, then the router, then keeping, then an orderly end.

Promises: when `serve_fleet` returns or raises, no process of the fleet runs any more. On the first stop signal the router
takes no new requests and finishes those under way while the workers still serve; on the second one all end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from conserve._counted import counted

from .fleet import Fleet
from .fleet_file import FleetFile
from .keeper import Ended, Happening, NotRestarted, Restarted, keep
from .launch import Plan
from .process import WorkerProcess
from .spec import ProcessSpec

Told: TypeAlias = str
"""One line for the person who looks on."""

_ROUTER_START_S: Final = 60.0
_REMIND_EVERY_S: Final = 15.0
# On top of the time that the router gives the requests under way.
_ROUTER_GRACE_S: Final = 5.0


async def serve_fleet(fleet: FleetFile, plan: Plan, *, log_dir: Path, tell: Callable[[Told], None]) -> None:
    """Start all of `plan` and serve until SIGTERM, SIGINT or SIGHUP. `tell` gets each line of progress.

    Raises:
        SupervisorError: a process did not start.
    """
    stop = asyncio.Event()
    async with Fleet(log_dir=log_dir, grace_s=fleet.grace_s) as processes:
        with _signals(stop):
            serving = asyncio.create_task(_serve(fleet, plan, processes, tell))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if serving.done():
                await serving
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            stop.clear()
            await _end(plan, processes, stop, tell)
    tell("every process has ended")


async def _serve(fleet: FleetFile, plan: Plan, processes: Fleet, tell: Callable[[Told], None]) -> None:
    """Start the workers, then the router, then keep them all running until cancelled."""
    specs = [each.spec for each in plan.workers]
    tell(f"starting {counted(len(specs), 'worker')}; logs in {processes.log_dir}")
    await _start(processes, specs, fleet.start_timeout_s, tell)
    router = await processes.start([plan.router], timeout_s=_ROUTER_START_S)
    tell(f"conserve serves {router[plan.router.name]}/v1 ({counted(len(specs), 'worker')})")
    names = [*(spec.name for spec in specs), plan.router.name]
    await keep(
        processes, names, timeout_s=fleet.start_timeout_s, tell=lambda happening: tell(_in_words(happening))
    )


async def _start(
    processes: Fleet, specs: Sequence[ProcessSpec], timeout_s: float, tell: Callable[[Told], None]
) -> None:
    """Start the workers, telling of each that serves, and now and then who is waited for."""
    missing = [spec.name for spec in specs]
    began_s = time.monotonic()

    def ready(process: WorkerProcess) -> None:
        missing.remove(process.name)
        after_s = time.monotonic() - began_s
        tell(
            f"{process.name} serves {process.url} after {after_s:.1f} s ({len(specs) - len(missing)} of {len(specs)})"
        )

    start = asyncio.create_task(processes.start(specs, timeout_s=timeout_s, on_ready=ready))
    try:
        while not (await asyncio.wait((start,), timeout=_REMIND_EVERY_S))[0]:
            tell(f"waiting for {', '.join(missing)} since {time.monotonic() - began_s:.0f} s")
    except asyncio.CancelledError:
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        raise
    await start


async def _end(plan: Plan, processes: Fleet, again: asyncio.Event, tell: Callable[[Told], None]) -> None:
    """Let the router finish what is under way, unless asked `again`; the workers end with the fleet's block."""
    if plan.router.name in processes.processes:
        tell("stopping: requests under way may finish; stop again to end them")
        grace_s = plan.drain_s + _ROUTER_GRACE_S
        drained = asyncio.create_task(processes[plan.router.name].stop(grace_s=grace_s))
        impatient = asyncio.create_task(again.wait())
        await asyncio.wait((drained, impatient), return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            await processes[plan.router.name].kill()
            await drained
        impatient.cancel()
    if again.is_set():
        for process in processes.processes.values():
            await process.kill()


def _in_words(happening: Happening) -> Told:
    match happening:
        case Ended(name, status, wait_s):
            return f"{name} ended with status {status}; it is started again in {wait_s:g} s"
        case Restarted(name, url):
            return f"{name} serves {url} again"
        case NotRestarted(name, why):
            return f"{name} did not come up: {why}"


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP set the event; not SIGHUP where it was to be ignored, as under `nohup`."""
    loop = asyncio.get_running_loop()
    heeded = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heeded.append(signal.SIGHUP)
    for number in heeded:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
