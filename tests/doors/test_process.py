"""`conserve serve` as a process: ready, bounded in memory, stopped by signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
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


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("door", DOORS)
async def test_a_slow_reader_of_a_large_stream_costs_little_memory(tmp_path: Path, door: str) -> None:
    """128 MiB flow to a client that pauses again and again; real time passes, because memory is what is measured."""
    async with MockWorker(role="both", remember=False) as mock:
        async with serving(tmp_path, "--door", door, "--both", mock.url) as (url, process):
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{url}{CHAT}", json=chat_body("warm up", stream=True)) as answer:
                    await answer.read()
            before = resident_bytes(process.pid)
            mock.arm(Fault(leg="decode", tokens=8_192, token_bytes=16_384, times=1))
            peak, total = before, 0
            async with connect(url, receive_buffer_bytes=128 * 1024) as raw:
                await raw.send(request(CHAT, json.dumps(chat_body("hi", stream=True)).encode()))
                assert (await raw.head())[0] == 200
                while piece := await raw.reader.read(MIB):
                    total += len(piece)
                    if total % (4 * MIB) < len(piece):
                        await asyncio.sleep(0.01)
                        peak = max(peak, resident_bytes(process.pid))
                    if piece.endswith(b"0\r\n\r\n"):
                        break
            assert total > 128 * MIB
            assert peak - before <= 16 * MIB, (
                f"{(peak - before) / MIB:.1f} MiB more for {total / MIB:.0f} MiB"
            )


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


@pytest.mark.parametrize("door", DOORS)
async def test_sigterm_lets_a_stream_finish_then_ends_with_success(tmp_path: Path, door: str) -> None:
    command = ("--door", door, "--both")
    async with MockWorker(role="both") as mock, serving(tmp_path, *command, mock.url) as (url, process):
        mock.arm(Fault(interval_s=0.02, tokens=20))
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}{CHAT}", json=chat_body("hi", stream=True)) as answer:
                process.send_signal(signal.SIGTERM)
                content = await answer.read()
        assert content.endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(10):
            assert await process.wait() in (0, -signal.SIGTERM)


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
