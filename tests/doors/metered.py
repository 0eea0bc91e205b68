"""A running door over a prefiller and a decoder, each on a GPU that uses energy while the test runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conserve_workers.mock import MockWorker
from tests.support import nvml
from tests.support.nvml import StandIn

from .test_process import serving


@dataclass(frozen=True, slots=True)
class Metered:
    """Where the door is, and its workers."""

    url: str
    prefiller: MockWorker
    decoder: MockWorker


@contextlib.asynccontextmanager
async def run_metered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> AsyncIterator[Metered]:
    """Start all of it; p0 is of tier fast and d0 of tier slow."""
    machine = StandIn(tmp_path / "gpus", gpus=2)
    monkeypatch.setenv(nvml.VARIABLE, str(machine.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml.library().parent))
    async with (
        MockWorker(role="prefiller") as prefiller,
        MockWorker(role="decoder") as decoder,
        serving(
            tmp_path,
            *("--door", door, "--energy-interval-s", "0.02", "--probe-interval-s", "0.05"),
            *("--prefiller", f"{prefiller.url},name=p0,gpus=0,tier=fast"),
            *("--decoder", f"{decoder.url},name=d0,gpus=1,tier=slow"),
        ) as (url, _),
    ):
        burning = asyncio.create_task(_burn(machine))
        try:
            yield Metered(url, prefiller, decoder)
        finally:
            burning.cancel()


async def _burn(machine: StandIn) -> None:
    """GPUs that use 100 and 200 W, roughly: the counters are what counts."""
    while True:
        machine.gpu(0).energy_mj += 1_000
        machine.gpu(1).energy_mj += 2_000
        await asyncio.sleep(0.01)  # time passes for the counters, as it does for real ones
