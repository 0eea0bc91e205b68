"""`conserve serve` as a process: ready, bounded in memory, stopped by signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from conserve_workers.mock import Fault, MockWorker
from tests.support.cluster import CHAT, chat_body
from tests.support.raw import connect, request

MIB = 1024 * 1024
DOORS = ("fastapi", "native")


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, *options: str, under: tuple[str, ...] = ()
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The command, run by the command `under` if that is given."""
    ready = tmp_path / "ready.json"
    command = [
        sys.executable,
        "-m",
        "conserve.cli",
        "serve",
        "--port",
        "0",
        "--ready-file",
        str(ready),
        *options,
    ]
    command = [*under, *command]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        if not line:
            assert process.stderr is not None
            raise AssertionError((await process.stderr.read()).decode())
        told = json.loads(ready.read_text())
        assert told["event"] == "ready"
        assert told["url"] in line, "the line says where it serves"
        yield told["url"], process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def memory_bytes(pid: int, field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the most there was) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kib) * 1024


needs_clear_refs = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(),
    reason="needs /proc/PID/clear_refs, which only Linux has: forget_peak writes it",
)


def forget_peak(pid: int) -> int:
    """Make what is resident now the most there was; its bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_bytes(pid, "VmRSS")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@needs_clear_refs
@pytest.mark.parametrize(("door", "allowed"), [("fastapi", 16 * MIB), ("native", 8 * MIB)])
@pytest.mark.timeout(120)
async def test_a_slow_reader_of_a_large_stream_costs_little_memory(
    tmp_path: Path, door: str, allowed: int
) -> None:
    """300 MiB to a client that reads nothing until the worker is held up, then drains with pauses."""
    async with MockWorker(role="both") as mock:
        async with serving(tmp_path, "--door", door, "--both", mock.url) as (url, process):
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{url}{CHAT}", json=chat_body("warm up", stream=True)) as answer:
                    await answer.read()
            before = forget_peak(process.pid)
            mock.arm(Fault(leg="decode", tokens=19_200, token_bytes=16_384, times=1))
            total = 0
            async with connect(url, receive_buffer_bytes=128 * 1024) as raw:
                await raw.send(request(CHAT, json.dumps(chat_body("hi", stream=True)).encode()))
                upstream = await mock.arrived(2, leg="decode")
                assert (await raw.head())[0] == 200
                previous = -1
                async with asyncio.timeout(20):
                    while upstream.sent_bytes != previous:
                        previous = upstream.sent_bytes
                        await asyncio.sleep(0.3)
                assert previous < 40 * MIB, "what nobody reads stays with the worker"
                assert not upstream.done.is_set()
                while piece := await raw.reader.read(MIB):
                    total += len(piece)
                    if total % (4 * MIB) < len(piece):
                        await asyncio.sleep(0.01)
                    if piece.endswith(b"0\r\n\r\n"):
                        break
            assert total > 300 * MIB
            more = memory_bytes(process.pid, "VmHWM") - before
            assert more <= allowed, f"{more / MIB:.1f} MiB more for {total / MIB:.0f} MiB"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_connection_of_a_client_that_takes_nothing_is_closed(tmp_path: Path, stream: bool) -> None:
    options = ("--client-stall-timeout-s", "0.2", "--log-level", "error")
    async with (
        MockWorker(role="both", remember=False) as mock,
        serving(tmp_path, "--both", mock.url, *options) as (url, process),
    ):
        before = open_files(process.pid)
        mock.arm(Fault(leg="decode", tokens=1_000, token_bytes=20_000))
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(8):
                raw = await stack.enter_async_context(connect(url, receive_buffer_bytes=65_536))
                await raw.send(request(CHAT, json.dumps(chat_body("hi", stream=stream)).encode()))
                assert (await raw.head())[0] == 200
            async with asyncio.timeout(20):
                # Real time: nobody else tells when a connection was closed. Those to the worker are kept for a while.
                while open_files(process.pid) > before + 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("door", DOORS)
async def test_a_signal_lets_a_stream_finish_then_ends_with_success(
    tmp_path: Path, door: str, number: signal.Signals
) -> None:
    command = ("--door", door, "--both")
    async with MockWorker(role="both") as mock, serving(tmp_path, *command, mock.url) as (url, process):
        mock.arm(Fault(interval_s=0.02, tokens=20))
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}{CHAT}", json=chat_body("hi", stream=True)) as answer:
                process.send_signal(number)
                content = await answer.read()
        assert content.endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(10):
            assert await process.wait() == 0


@pytest.mark.parametrize("door", DOORS)
async def test_a_hangup_that_was_to_be_ignored_is(tmp_path: Path, door: str) -> None:
    deaf = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    async with MockWorker(role="both") as mock:
        async with serving(tmp_path, "--door", door, "--both", mock.url, under=deaf) as (url, process):
            process.send_signal(signal.SIGHUP)
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{url}{CHAT}", json=chat_body("hi")) as answer:
                    assert answer.status == 200
                async with http.get(f"{url}/v1/fleet") as answer:
                    assert (await answer.json())["draining"] is False


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="asks for another process's limits")
async def test_it_takes_the_open_files_that_it_may_have(tmp_path: Path) -> None:
    small = ("sh", "-c", 'ulimit -S -n 128; exec "$@"', "sh")
    async with MockWorker(role="both") as mock:
        async with serving(tmp_path, "--both", mock.url, under=small) as (_, process):
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard


async def test_a_second_signal_ends_streams_with_an_error_event(tmp_path: Path) -> None:
    async with MockWorker(role="both") as mock, serving(tmp_path, "--both", mock.url) as (url, process):
        mock.arm(Fault(interval_s=0.02, tokens=10_000))
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}{CHAT}", json=chat_body("hi", stream=True)) as answer:
                process.send_signal(signal.SIGTERM)
                while (await http.get(f"{url}/readyz")).status != 503:  # noqa: ASYNC110 - asked over HTTP
                    await asyncio.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                content = await answer.read()
        last = content.decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        async with asyncio.timeout(10):
            assert await process.wait() in (0, -signal.SIGTERM)


async def test_a_setting_out_of_range_is_named_and_ends_the_command(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "conserve.cli",
        "serve",
        "--both",
        "http://w0:1",
        "--low-watermark",
        "1.5",
    ]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"low_watermark" in said
    assert b"less than or equal to 1" in said
