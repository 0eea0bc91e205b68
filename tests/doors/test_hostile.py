"""Clients that hold what they can: connections, open files, handshakes, heads. Others are served, and what was held comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from conserve_workers.mock import Fault, MockWorker
from tests.support.cluster import CHAT, chat_body, run_cluster
from tests.support.raw import RawClient, connect, request

from .conftest import open_native
from .test_process import DOORS, MIB, forget_peak, memory_bytes, open_files, serving

IDLE = 10_000
BODY = json.dumps(chat_body("hi")).encode()


@contextlib.asynccontextmanager
async def many(url: str, count: int) -> AsyncIterator[list[RawClient]]:
    """So many connections that say nothing."""
    async with contextlib.AsyncExitStack() as stack:
        found: list[RawClient] = []
        for start in range(0, count, 500):
            some = [connect(url) for _ in range(min(500, count - start))]
            found += await asyncio.gather(*(stack.enter_async_context(each) for each in some))
        yield found


async def until_files(pid: int, holds: object) -> None:
    """Wait until the number of the process's open files is as wanted."""
    assert callable(holds)
    async with asyncio.timeout(20):
        # Real time: another process's files announce nothing.
        while not holds(open_files(pid)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE + 500
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(f"needs {needed} open files, this machine allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.timeout(120)
async def test_ten_thousand_idle_connections_cost_little_and_leave_nothing(tmp_path: Path) -> None:
    async with (
        MockWorker(role="both") as mock,
        serving(
            tmp_path,
            "--both",
            mock.url,
            "--log-level",
            "error",
            "--body-timeout-s",
            "300",
            "--max-connections",
            "0",
        ) as (
            url,
            process,
        ),
        aiohttp.ClientSession() as http,
    ):
        async with http.post(url + CHAT, data=BODY) as answer:
            assert answer.status == 200
        files, before = open_files(process.pid), forget_peak(process.pid)
        async with many(url, IDLE):
            await until_files(process.pid, lambda count: count >= files + IDLE - 10)
            async with http.post(url + CHAT, data=BODY) as answer:
                assert answer.status == 200, "others are served"
            more = memory_bytes(process.pid, "VmHWM") - before
            assert more < 60 * MIB, f"{more / IDLE / 1024:.1f} KiB for each"
        await until_files(process.pid, lambda count: count <= files + 4)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit, of util-linux")
@pytest.mark.parametrize("door", DOORS)
async def test_without_open_files_no_worker_is_lost_and_the_door_comes_back(
    tmp_path: Path, door: str
) -> None:
    under = ("prlimit", "--nofile=80:80")
    async with MockWorker(role="both") as mock:
        options = ("--door", door, "--both", mock.url, "--probe-interval-s", "0.05", "--log-level", "error")
        async with (
            serving(tmp_path, *options, under=under) as (url, process),
            aiohttp.ClientSession() as http,
        ):
            async with connect(url) as held, many(url, 150):
                await until_files(process.pid, lambda count: count >= 79)
                # Its connections are all taken; this one was there before.
                await held.send(request(CHAT, BODY))
                status, headers = await held.head()
                body = await held.reader.readexactly(int(headers["content-length"]))
                assert status in (200, 503), body
                if status == 503:
                    error = json.loads(body)["error"]
                    assert error["code"] == "worker_unavailable"
                    assert "the router has too many files or ports open" in error["message"]
            async with http.get(url + "/v1/fleet?check=true") as answer:
                fleet = await answer.json()
            assert [(row["id"], row["health"]) for row in fleet["workers"]] == [(0, "ready")], (
                "a worker that could not be asked for want of files is not lost"
            )
            assert fleet["check"] == "ok"
            async with http.post(url + CHAT, data=BODY) as answer:
                assert answer.status == 200


async def test_heads_that_trickle_in_do_not_keep_their_connections() -> None:
    # A byte now and then: each comes in time, the head does not.
    async with (
        run_cluster(open_native, prefillers=0, decoders=1, body_timeout_s=0.4) as c,
        many(c.url, 50) as raws,
    ):

        async def trickle(raw: RawClient) -> None:
            try:
                for byte in b"GET /healthz HTTP/1.1\r\nx-slow: " + b"a" * 1_000:
                    await raw.send(bytes((byte,)))
                    await asyncio.sleep(0.02)
            except ConnectionError:
                return
            raise AssertionError("20 s for a head of 0.4")

        async with asyncio.timeout(10):
            await asyncio.gather(*(trickle(raw) for raw in raws))
        assert (await c.chat("hi")).status == 200


async def test_bodies_that_trickle_in_are_refused_in_time() -> None:
    async with (
        run_cluster(open_native, prefillers=0, decoders=1, body_timeout_s=0.4) as c,
        connect(c.url) as raw,
        asyncio.timeout(10),
    ):
        await raw.send(request(CHAT, BODY)[: -len(BODY)])
        with contextlib.suppress(ConnectionError):
            for byte in BODY:
                await raw.send(bytes((byte,)))
                await asyncio.sleep(0.02)
        assert (await raw.head())[0] == 408
        await c.nothing_booked()


async def test_half_a_connection_is_none() -> None:
    """A client that closes its side has left, as with nginx: nothing goes on for it."""
    async with run_cluster(open_native, prefillers=0, decoders=1) as c, connect(c.url) as raw:
        c.decoders[0].arm(Fault(stall_head=True, times=1))
        await raw.send(request(CHAT, BODY))
        asked = await c.decoders[0].arrived(1)
        raw.writer.write_eof()
        async with asyncio.timeout(5):
            await asked.done.wait()
        assert asked.aborted
        await c.nothing_booked()


@pytest.mark.parametrize(
    "one", [b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", request(CHAT, BODY)], ids=["control path", "turn"]
)
async def test_an_idle_connection_ends_and_a_used_one_is_kept(
    monkeypatch: pytest.MonkeyPatch, one: bytes
) -> None:
    monkeypatch.setattr("conserve.proxy.native.KEEP_ALIVE_S", 0.4)
    async with run_cluster(open_native, prefillers=0, decoders=1) as c, connect(c.url) as raw:
        for _ in range(4):
            await raw.send(one)
            status, headers = await raw.head()
            assert status == 200
            await raw.reader.readexactly(int(headers["content-length"]))
            await asyncio.sleep(0.15)  # within the time, and in sum beyond it
        async with asyncio.timeout(5):
            assert await raw.reader.read() == b"", "closed without a word"
