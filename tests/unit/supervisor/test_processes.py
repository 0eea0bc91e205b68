"""The supervisor starts processes, knows when they serve, and leaves none behind. Real processes, no real workers."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conserve.supervisor import (
    Fleet,
    ProcessExitedError,
    ProcessNotReadyError,
    ProcessSpec,
    SupervisorError,
    WorkerProcess,
)
from conserve.supervisor.probe import answers

pytestmark = pytest.mark.timeout(60)

STAND_IN = str(Path(__file__).with_name("stand_in.py"))


def spec(name: str, *flags: str, env: dict[str, str] | None = None) -> ProcessSpec:
    return ProcessSpec(name=name, role="test", argv=(sys.executable, STAND_IN, *flags), env=env or {})


def is_gone(pid: int, *, timeout_s: float = 10) -> bool:
    """Whether the process, which need not be our child, has ended; waits for its end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("leash", ["exec", "watch"])
async def test_ready_process_serves_and_stop_ends_it(tmp_path: Path, leash: str) -> None:
    process = await WorkerProcess.start(spec("d0", env={"COLOUR": "blue"}), log_dir=tmp_path, leash=leash)
    url = await process.ready(timeout_s=20)
    assert await answers(url + "/health"), "ready means that it answers"
    assert process.url == url
    status = await process.stop()
    assert status in (-signal.SIGTERM, 128 + signal.SIGTERM), "SIGTERM ended it, not SIGKILL"
    assert not await answers(url + "/health")
    log = process.log_path.read_text()
    assert "to stderr" in log
    assert "colour blue" in log, "both streams and the added environment are in one log"


async def test_exit_before_ready_names_the_process_and_shows_its_log(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0", "--fail"), log_dir=tmp_path)
    with pytest.raises(ProcessExitedError, match=r"p0 ended with status 3(.|\n)*cannot load the model"):
        await process.ready(timeout_s=20)
    assert await process.kill() == 3, "killing what has ended is no error"


async def test_command_that_does_not_exist_is_an_exit_with_the_reason(tmp_path: Path) -> None:
    process = await WorkerProcess.start(
        ProcessSpec(name="p0", role="x", argv=("/no/such/command",)), log_dir=tmp_path
    )
    with pytest.raises(ProcessExitedError, match=r"status 127(.|\n)*cannot start /no/such/command"):
        await process.ready(timeout_s=20)


async def test_silence_is_not_ready_and_kill_ends_it(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0", "--never-ready"), log_dir=tmp_path)
    with pytest.raises(ProcessNotReadyError, match=r"p0 was not ready within 0.5 s"):
        await process.ready(timeout_s=0.5)
    with pytest.raises(ProcessNotReadyError):
        _ = process.url
    assert await process.kill() == -signal.SIGKILL


async def test_line_longer_than_the_buffer_does_not_stop_the_pump(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0", "--long-line"), log_dir=tmp_path)
    await process.ready(timeout_s=20)
    await process.stop()
    assert process.log_path.read_text().count("x") >= 2 << 20, "the whole line is in the log"


async def test_process_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0", "--ignore-term"), log_dir=tmp_path)
    await process.ready(timeout_s=20)
    assert await process.stop(grace_s=0.2) == -signal.SIGKILL


async def test_stopped_process_is_ended_too(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0"), log_dir=tmp_path)
    await process.ready(timeout_s=20)
    process.signal(signal.SIGSTOP)
    assert await process.stop(grace_s=5) == -signal.SIGTERM, "it was continued so that it could end by itself"


async def test_children_of_a_process_end_with_it(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0", "--child"), log_dir=tmp_path)
    await process.ready(timeout_s=20)
    child = int(process.log_path.read_text().split("child ")[1].split()[0])
    await process.stop()
    assert is_gone(child)


async def test_process_killed_alone_takes_its_children_along(tmp_path: Path) -> None:
    process = await WorkerProcess.start(spec("p0", "--child"), log_dir=tmp_path)
    await process.ready(timeout_s=20)
    child = int(process.log_path.read_text().split("child ")[1].split()[0])
    process.signal(signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), timeout=20) == -signal.SIGKILL, (
        "the child held the pipe open"
    )
    assert is_gone(child)


async def test_fleet_starts_all_and_leaves_none(tmp_path: Path) -> None:
    seen: list[str] = []
    async with Fleet(log_dir=tmp_path) as fleet:
        urls = await fleet.start(
            [spec("p0"), spec("d0"), spec("d1")],
            timeout_s=20,
            on_ready=lambda process: seen.append(process.name),
        )
        pids = [process.pid for process in fleet.processes.values()]
        assert len(set(urls.values())) == 3
        assert sorted(seen) == ["d0", "d1", "p0"]
        with pytest.raises(SupervisorError, match="'d0' is used twice"):
            await fleet.start([spec("d0")], timeout_s=1)
        assert await answers(urls["d0"] + "/health"), "the refused start left the fleet as it was"
    assert all(is_gone(pid) for pid in pids)


async def test_one_failure_stops_the_others_of_the_same_start(tmp_path: Path) -> None:
    fleet = Fleet(log_dir=tmp_path)
    with pytest.raises(ProcessExitedError, match="d1 ended with status 3"):
        await fleet.start([spec("d0"), spec("d1", "--fail")], timeout_s=20)
    assert not fleet.processes
    log = (tmp_path / "d0.log").read_text()
    assert "pid" not in log or is_gone(int(log.split("pid ")[1].split()[0]))


async def test_second_interrupt_does_not_wait_for_the_grace_time(tmp_path: Path) -> None:
    fleet = Fleet(log_dir=tmp_path, grace_s=600)
    await fleet.start([spec("d0", "--ignore-term"), spec("d1")], timeout_s=20)
    pids = [process.pid for process in fleet.processes.values()]
    stubborn = fleet["d0"]
    stopping = asyncio.create_task(fleet.stop())
    assert await asyncio.to_thread(is_gone, pids[1])
    assert stubborn.returncode is None, "it ignores SIGTERM"
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert all(is_gone(pid) for pid in pids)


async def test_first_exit_tells_which_process_was_lost(tmp_path: Path) -> None:
    async with Fleet(log_dir=tmp_path) as fleet:
        await fleet.start([spec("d0"), spec("d1")], timeout_s=20)
        waiting = asyncio.create_task(fleet.first_exit())
        fleet["d1"].signal(signal.SIGKILL)
        assert (await waiting).name == "d1"


PARENT = """
import asyncio, sys
from pathlib import Path
from conserve.supervisor import ProcessSpec, WorkerProcess

async def main():
    argv = (sys.executable, sys.argv[1], *sys.argv[4:])
    spec = ProcessSpec(name="d0", role="test", argv=argv, has_children="--child" in argv)
    process = await WorkerProcess.start(spec, log_dir=Path(sys.argv[2]), leash=sys.argv[3] or None)
    await process.ready(timeout_s=20)
    print(process.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("leash", ["exec", "watch"])
def test_parent_killed_with_9_leaves_no_process(tmp_path: Path, leash: str) -> None:
    argv = [sys.executable, "-c", PARENT, STAND_IN, str(tmp_path), leash]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        leader = int(parent.stdout.readline())
        worker = int((tmp_path / "d0.log").read_text().split("pid ")[1].split()[0])
        parent.kill()
    assert is_gone(worker), "the worker died with its parent"
    assert is_gone(leader)


def test_parent_killed_with_9_leaves_no_grandchild(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, STAND_IN, str(tmp_path), "", "--child"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        grandchild = int((tmp_path / "d0.log").read_text().split("child ")[1].split()[0])
        parent.kill()
    assert is_gone(grandchild)


def test_spec_refuses_a_name_that_cannot_be_a_file() -> None:
    for name in ("", "a/b", "../x", "x" * 65):
        with pytest.raises(ValueError, match="process name"):
            ProcessSpec(name=name, role="x", argv=("true",))
    with pytest.raises(ValueError, match="argv is empty"):
        ProcessSpec(name="p0", role="x", argv=())


def test_hidden_variables_are_not_inherited_but_may_be_given() -> None:
    spec = ProcessSpec(
        name="router", role="x", argv=("true",), env={"CONSERVE_PORT": "0"}, hidden_prefixes=("CONSERVE_",)
    )
    seen = spec.environment({"PATH": "/bin", "CONSERVE_CONTROL_KEY": "secret", "CONSERVE_PORT": "8080"})
    assert seen == {"PATH": "/bin", "CONSERVE_PORT": "0"}
    assert ProcessSpec(name="p0", role="x", argv=("true",)).environment({"A": "1"}) == {"A": "1"}


def test_nothing_is_said_after_the_end_when_somebody_outlives_the_group(tmp_path: Path) -> None:
    program = f"""
import asyncio, gc, pathlib, sys
from conserve.supervisor import ProcessSpec, WorkerProcess

CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '20'], start_new_session=True, stdout=sys.stdout)"

async def main():
    spec = ProcessSpec(name="d0", role="test", argv=(sys.executable, "-c", CHILD))
    process = await WorkerProcess.start(spec, log_dir=pathlib.Path({str(tmp_path)!r}), leash="watch")
    while process.returncode is None:
        await asyncio.sleep(0.01)
    await process.kill()

asyncio.run(main())
gc.collect()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stderr == ""
