"""What ends by itself is started again, with growing patience. Real processes, no real time."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from conserve.supervisor import Fleet, ProcessExitedError, ProcessSpec
from conserve.supervisor.keeper import Backoff, Ended, Happening, NotRestarted, Restarted, keep
from conserve.supervisor.probe import answers

pytestmark = pytest.mark.timeout(60)

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
# Serves on its first start and fails on each later one: the file that it leaves tells it.
ONCE = """
import os, runpy, sys
marker, stand_in = sys.argv[1:]
first = not os.path.exists(marker)
open(marker, "w").close()
sys.argv = [stand_in] if first else [stand_in, "--fail"]
runpy.run_path(stand_in)
"""


def test_backoff_doubles_up_to_a_minute_and_forgets_after_a_long_life() -> None:
    backoff = Backoff()
    assert [backoff.after(lived_s=3) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.after(lived_s=120) == 1, "two minutes of service are a good life"
    assert backoff.after(lived_s=119) == 2


class Kept:
    """Keeps a fleet's processes and records what is told, until a number of things happened."""

    def __init__(self, fleet: Fleet, names: list[str]) -> None:
        self.told: list[Happening] = []
        self.slept: list[float] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(keep(fleet, names, timeout_s=20, tell=self._tell, sleep=self._sleep))

    def _tell(self, happening: Happening) -> None:
        self.told.append(happening)
        self._news.set()

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def until(self, number: int) -> list[Happening]:
        while len(self.told) < number:
            self._news.clear()
            await self._news.wait()
        return self.told[:number]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_killed_process_is_started_again_and_the_other_is_left_alone(tmp_path: Path) -> None:
    specs = [ProcessSpec(name=name, role="x", argv=(sys.executable, STAND_IN)) for name in ("d0", "d1")]
    async with Fleet(log_dir=tmp_path) as fleet:
        urls = await fleet.start(specs, timeout_s=20)
        kept = Kept(fleet, ["d0", "d1"])
        fleet["d0"].signal(signal.SIGKILL)
        ended, restarted = await kept.until(2)
        assert ended == Ended("d0", -signal.SIGKILL, 1.0)
        assert isinstance(restarted, Restarted)
        assert restarted.name == "d0"
        assert await answers(restarted.url + "/health")
        assert await answers(urls["d1"] + "/health")
        assert (tmp_path / "d0.log.1").read_text(), "the log of its last life is kept"
        await kept.stop()


async def test_process_that_does_not_come_up_is_tried_later_and_later(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", ONCE, str(tmp_path / "started"), STAND_IN)
    async with Fleet(log_dir=tmp_path) as fleet:
        await fleet.start([ProcessSpec(name="d0", role="x", argv=argv)], timeout_s=20)
        kept = Kept(fleet, ["d0"])
        fleet["d0"].signal(signal.SIGKILL)
        told = await kept.until(6)
        await kept.stop()
    assert [type(each) for each in told] == [Ended, NotRestarted] * 3
    assert kept.slept[:3] == [1, 2, 4]
    assert isinstance(told[1], NotRestarted)
    assert "cannot load the model" in told[1].why


async def test_restart_that_fails_leaves_the_name_for_another_try(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", ONCE, str(tmp_path / "started"), STAND_IN)
    async with Fleet(log_dir=tmp_path) as fleet:
        await fleet.start([ProcessSpec(name="d0", role="x", argv=argv)], timeout_s=20)
        with pytest.raises(ProcessExitedError, match="status 3"):
            await fleet.restart("d0", timeout_s=20)
        (tmp_path / "started").unlink()
        assert await answers(await fleet.restart("d0", timeout_s=20) + "/health")


async def test_known_address_needs_no_ready_line(tmp_path: Path) -> None:
    async with Fleet(log_dir=tmp_path) as fleet:
        url = (
            await fleet.start(
                [ProcessSpec(name="d0", role="x", argv=(sys.executable, STAND_IN))], timeout_s=20
            )
        )["d0"]
        # A second process whose address is that of the first: it says nothing, and is ready all the same.
        silent = ProcessSpec(
            name="d1", role="x", argv=(sys.executable, STAND_IN, "--never-ready"), url=url + "/"
        )
        assert (await fleet.start([silent], timeout_s=20))["d1"] == url
