"""Several worker processes as one thing: started in parallel, all or none, stopped together.

    async with Fleet(log_dir=logs) as fleet:
        urls = await fleet.start(specs, timeout_s=60)

Promises: when `start` raises, and when the block is left in any way, no process of the fleet runs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .process import SupervisorError, WorkerProcess
from .spec import ProcessSpec


class Fleet:
    """The processes started so far, by name."""

    def __init__(self, *, log_dir: Path, grace_s: float = 5.0) -> None:
        self.log_dir = log_dir
        self._grace_s = grace_s
        self._processes: dict[str, WorkerProcess] = {}

    async def __aenter__(self) -> Self:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __getitem__(self, name: str) -> WorkerProcess:
        return self._processes[name]

    @property
    def processes(self) -> Mapping[str, WorkerProcess]:
        """Every process ever started here and not given up, ended ones too."""
        return dict(self._processes)

    async def start(
        self,
        specs: Sequence[ProcessSpec],
        *,
        timeout_s: float,
        on_ready: Callable[[WorkerProcess], None] | None = None,
    ) -> dict[str, str]:
        """Start `specs` together and wait until each is ready; their URLs by name.

        `on_ready` is called for each process as it becomes ready, for progress.

        Raises:
            SupervisorError: a name is taken, or a process could not be started, ended, or was not ready within
                `timeout_s`. The processes of this call are stopped first.
        """
        names = [spec.name for spec in specs]
        taken = [name for name in names if name in self._processes or names.count(name) > 1]
        if taken:
            raise SupervisorError(f"process name {taken[0]!r} is used twice")
        try:
            for spec in specs:
                self._processes[spec.name] = await WorkerProcess.start(spec, log_dir=self.log_dir)
            async with asyncio.TaskGroup() as group:
                waits = {
                    name: group.create_task(_ready(self._processes[name], timeout_s, on_ready))
                    for name in names
                }
        except BaseException as error:
            await self._stop([name for name in names if name in self._processes])
            if isinstance(error, BaseExceptionGroup) and (first := _first(error)):
                raise first from None
            raise
        return {name: wait.result() for name, wait in waits.items()}

    async def restart(self, name: str, *, timeout_s: float) -> str:
        """Start a process that has ended once more, as it was, and wait until it is ready; its URL.

        What it had started is killed first. The log of its last life is kept as `NAME.log.1`. When it does not come up
        it stays in the fleet, ended, so that it can be tried again.

        Raises:
            SupervisorError: it could not be started, ended, or was not ready within `timeout_s`.
        """
        ended = self._processes[name]
        await ended.kill()
        with contextlib.suppress(OSError):
            ended.log_path.replace(ended.log_path.with_name(f"{ended.log_path.name}.1"))
        process = await WorkerProcess.start(ended.spec, log_dir=self.log_dir)
        self._processes[name] = process
        try:
            return await process.ready(timeout_s=timeout_s)
        except SupervisorError:
            await process.kill()
            raise

    async def first_exit(self) -> WorkerProcess:
        """Wait until one of the processes ends by itself; which one."""
        waits = {asyncio.create_task(process.wait()): process for process in self._processes.values()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    async def stop(self) -> None:
        """Stop every process: SIGTERM to all at once, SIGKILL to those that need longer than the grace time."""
        await self._stop(list(self._processes))

    async def _stop(self, names: Sequence[str]) -> None:
        processes = [self._processes.pop(name) for name in names]
        stops = asyncio.gather(*(process.stop(grace_s=self._grace_s) for process in processes))
        try:
            await asyncio.shield(stops)
        except (
            asyncio.CancelledError
        ):  # Asked a second time: no more patience, but still nothing left behind.
            await asyncio.gather(*(process.kill() for process in processes))
            raise


async def _ready(
    process: WorkerProcess, timeout_s: float, on_ready: Callable[[WorkerProcess], None] | None
) -> str:
    url = await process.ready(timeout_s=timeout_s)
    if on_ready is not None:
        on_ready(process)
    return url


def _first(group: BaseExceptionGroup[BaseException]) -> SupervisorError | None:
    """The first of our errors in what a task group collected."""
    for error in group.exceptions:
        if isinstance(error, SupervisorError):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := _first(error)):
            return found
    return None
