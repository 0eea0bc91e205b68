"""Many at once, and large ones among them: everybody is served, work is spread, and nobody holds up the others."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.support.cluster import CHAT, WAIT_S, chat_body
from tests.support.fast_mock import FastMock

from .conftest import StartCluster
from .test_process import DOORS, serving

AT_ONCE = 2_048
NEEDED_FDS = 2 * AT_ONCE + 200
"""Of the door: both ends of each, and some more. It inherits the limit."""


@pytest.fixture
def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < NEEDED_FDS:
        if hard != resource.RLIM_INFINITY and hard < NEEDED_FDS:
            pytest.skip(f"needs {NEEDED_FDS} open files, this machine allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (NEEDED_FDS, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("door", DOORS)
async def test_2048_requests_at_once_are_all_served(tmp_path: Path, door: str) -> None:
    async with (
        FastMock("--role", "prefiller") as p0,
        FastMock("--role", "decoder") as d0,
        FastMock("--role", "decoder") as d1,
    ):
        workers = ("--prefiller", p0.url, "--decoder", d0.url, "--decoder", d1.url)
        patience = ("--queue-timeout-s", "100", "--connect-timeout-s", "60", "--probe-timeout-s", "60")
        async with (
            serving(tmp_path, "--door", door, *workers, *patience, "--log-level", "error") as (url, _),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):

            async def ask(place: int) -> tuple[int, bool]:
                tag = f"task-{place}"
                body = chat_body(tag, user=f"mock flat chunks=2 echo={tag}", stream=place % 2 == 0) | {
                    "model": "m"
                }
                async with http.post(url + CHAT, json=body, headers={"x-conversation-id": tag}) as answer:
                    return answer.status, f'"{tag}'.encode() in await answer.read()

            for mock in (d0, d1):
                await mock.tell("hold")
            asked = [asyncio.create_task(ask(place)) for place in range(AT_ONCE)]
            async with asyncio.timeout(120):
                while sum([(await mock.counts())["served"] for mock in (d0, d1)]) < AT_ONCE:
                    assert not any(task.done() for task in asked), next(task for task in asked if task.done())
                    await asyncio.sleep(0.05)
            for mock in (d0, d1):
                await mock.tell("")
            assert Counter(await asyncio.gather(*asked)) == {(200, True): AT_ONCE}


async def test_a_shared_prompt_does_not_draw_all_conversations_to_one_worker(cluster: StartCluster) -> None:
    shared = "You are a coding agent. Read the whole repository first. " * 60
    async with cluster(prefillers=2, decoders=4, worker={"kv_blocks": 20_000}) as c:

        def task(place: int) -> dict[str, object]:
            system = {"role": "system", "content": shared}
            user = {"role": "user", "content": f"task {place}"}
            return {"model": "mock", "max_tokens": 2, "messages": [system, user]}

        answers = await asyncio.gather(
            *(c.post(task(place), conversation=f"c{place}") for place in range(40))
        )
        assert {answer.status for answer in answers} == {200}
        decoders = Counter(answer.decoder for answer in answers)
        assert sorted(decoders) == ["d0", "d1", "d2", "d3"]
        assert max(decoders.values()) <= 14, f"40 conversations over 4 equal decoders: {decoders}"
        prefillers = Counter(answer.headers["x-conserve-prefiller"] for answer in answers)
        assert sorted(prefillers) == ["p0", "p1"], prefillers


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("door", "allowed_s"), [("fastapi", 1.0), ("native", 0.25)])
async def test_large_bodies_that_arrive_do_not_hold_up_the_streams(
    tmp_path: Path, door: str, allowed_s: float
) -> None:
    """Twelve at once. The FastAPI door has one thread for them and for the streams, and 8 MB cost it some 5 ms of a free core."""
    async with FastMock(
        "--role", "decoder", "--interval_ms", "10", "--blocks", "16000000", "--max_model_len", "16000000"
    ) as d0:
        options = ("--decoder", d0.url, "--log-level", "error")
        async with serving(tmp_path, "--door", door, *options) as (url, _), aiohttp.ClientSession() as http:
            large = json.dumps(chat_body("x" * 8_000_000, user="mock flat") | {"model": "m"}).encode()
            over = asyncio.Event()
            waits: list[float] = []

            async def read_on(place: int) -> None:
                body = chat_body(f"task {place}", user="mock chunks=100000", stream=True) | {"model": "m"}
                async with http.post(url + CHAT, json=body) as answer:
                    async for line in answer.content:
                        if over.is_set():
                            return
                        if line.startswith(b"data: {"):
                            # Written by the worker at `ts`, on the clock of this machine.
                            waits.append((time.time_ns() - json.loads(line[6:])["ts"]) / 1e9)

            readers = [asyncio.create_task(read_on(place)) for place in range(8)]
            async with asyncio.timeout(WAIT_S):
                while len(waits) < 200:  # noqa: ASYNC110 - what the readers append
                    await asyncio.sleep(0.01)
            quiet = len(waits)
            command = [sys.executable, "-c", SENDER, url + CHAT, "12"]
            sender = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
            await sender.communicate(large)
            assert sender.returncode == 0, "every large body was answered with 200"
            over.set()
            await asyncio.gather(*readers)
            loud = waits[quiet:]
            assert len(loud) > 100, "the streams went on meanwhile"
            assert sorted(loud)[len(loud) * 99 // 100] < allowed_s, f"p99 of {len(loud)}; {sorted(loud)[-5:]}"


SENDER = """
import asyncio, sys, aiohttp
data = sys.stdin.buffer.read()
async def send(http):
    async with http.post(sys.argv[1], data=data, headers={"content-type": "application/json"}) as answer:
        await answer.read()
        return answer.status
async def main():
    async with aiohttp.ClientSession() as http:
        found = await asyncio.gather(*(send(http) for _ in range(int(sys.argv[2]))))
        sys.exit(set(found) != {200})
asyncio.run(main())
"""
"""Its own process, so that what sending costs does not count as the door's."""
