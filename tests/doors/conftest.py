"""Every scenario runs once for each door; `cluster(...)` starts mock workers and that door."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from conserve.proxy.native import NativeServer
from conserve.proxy.server import DoorServer
from conserve.settings import Settings
from tests.support.cluster import Cluster, OpenDoor, RunningDoor, run_cluster

from .metered import Metered, run_metered


class DoorHere:
    """A door whose event loop is the test's."""

    def __init__(self, kind: type[DoorServer | NativeServer], settings: dict[str, Any]) -> None:
        self._up = asyncio.Event()
        self.server = kind(Settings(port=0, **settings), on_ready=lambda _: self._up.set())
        self.url = self.server.url
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> DoorHere:
        self._task = asyncio.create_task(self.server.run_here())
        waiter = asyncio.create_task(self._up.wait())
        await asyncio.wait({self._task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        await waiter
        return self

    def begin_stop(self) -> None:
        self.server.stop()

    async def stop(self) -> None:
        if self._task is not None:
            self.server.should_exit = True
            await self._task
            self._task = None


async def open_fastapi(settings: dict[str, Any]) -> RunningDoor:
    return await DoorHere(DoorServer, settings).start()


async def open_native(settings: dict[str, Any]) -> RunningDoor:
    return await DoorHere(NativeServer, settings).start()


HOLDING: dict[str, Any] = {"evict_idle": False, "tail_waits": True}
"""A gate that takes nothing from idle conversations, so that one that ended its turn fills a decoder."""
DOORS: dict[str, OpenDoor] = {"fastapi": open_fastapi, "native": open_native}


class StartCluster(Protocol):
    """Starts mocks and a door; see `run_cluster`."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Cluster]: ...


@pytest.fixture(params=sorted(DOORS))
async def metered(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Metered]:
    async with run_metered(tmp_path, monkeypatch, request.param) as running:
        yield running


@pytest.fixture(params=sorted(DOORS))
def cluster(request: pytest.FixtureRequest) -> StartCluster:
    return functools.partial(run_cluster, DOORS[request.param])
