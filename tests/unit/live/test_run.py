"""A comparison that does not come to its end: what was run is kept, and who is to blame is named."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from conserve.live.client import served_model
from conserve.live.compare import compared, whole_rounds
from conserve.live.counters import fetched_tokens
from conserve.live.engines import Engines, Worker, from_urls
from conserve.live.errors import LiveError
from conserve.live.idle import until_idle
from conserve.live.plan import LivePlan
from conserve.live.run import unless_ended
from conserve.supervisor import Fleet, ProcessSpec
from tests.unit.live.test_outcome import one

POLICIES = ("strict", "collocated")


ENDS_WHEN_ASKED = """
import http.server, json, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print(json.dumps({"event": "ready", "url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
server.handle_request()
sys.exit(3)
"""


@asynccontextmanager
async def engine(pages: list[str], models: str = "{}") -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A server whose metrics are one page after the other, and the last one from then on."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=pages.pop(0) if len(pages) > 1 else pages[0])

    async def served(_request: web.Request) -> web.Response:
        return web.Response(text=models, content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", served)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield re.sub(r":0$", f":{runner.addresses[0][1]}", "http://127.0.0.1:0"), http
    finally:
        await runner.cleanup()


async def test_work_ends_with_the_process_that_it_is_done_on(tmp_path: Path) -> None:
    spec = ProcessSpec(name="w1", role="both", argv=(sys.executable, "-c", ENDS_WHEN_ASKED))
    async with Fleet(log_dir=tmp_path) as fleet:
        await fleet.start([spec], timeout_s=30)
        with pytest.raises(LiveError, match="w1 ended with status 3 in the middle"):
            await unless_ended(fleet, asyncio.sleep(3600))


async def test_work_that_fails_fails_as_it_would_alone(tmp_path: Path) -> None:
    async def fails() -> None:
        raise LiveError("no room")

    async with Fleet(log_dir=tmp_path) as fleet:
        with pytest.raises(LiveError, match="no room"):
            await unless_ended(fleet, fails())


def test_a_round_that_not_every_policy_had_is_in_no_figure() -> None:
    plan = LivePlan("swe-agent", POLICIES, 1.0, rounds=3)
    rounds = [
        one("strict", 0, wait_s=0.5),
        one("collocated", 0, wait_s=0.25),
        one("collocated", 1, wait_s=9.0),
    ]
    told = compared(plan, rounds)
    assert whole_rounds(plan, rounds) == 1
    assert [seen.ttft_p95_s.mean for seen in told.outcomes] == pytest.approx([0.5, 0.25])
    assert len(told.rounds) == 3, "nothing is lost"
    assert compared(plan, rounds[1:]).outcomes == []


async def test_a_run_begins_when_the_engines_hold_nothing_any_more() -> None:
    pages = [
        "vllm:kv_cache_usage_perc 0.25\n",
        "vllm:num_requests_waiting 2\n",
        "vllm:kv_cache_usage_perc 0.0\n",
    ]
    async with engine(pages) as (url, http):
        await until_idle(http, from_urls([], [], [url], connector="nixl"), tell=pytest.fail)
    assert pages == ["vllm:kv_cache_usage_perc 0.0\n"], "all pages were asked for"


async def test_an_engine_that_somebody_else_uses_is_named() -> None:
    async with engine(["vllm:kv_cache_usage_perc 0.25\n"]) as (url, http):
        busy = Engines("one", (Worker("w0", url, "both", url),), idle_timeout_s=0)
        with pytest.raises(LiveError, match=r"w0 at .* still holds 25 % of its KV .* used by nobody else"):
            await until_idle(http, busy, tell=pytest.fail)


async def test_an_engine_that_does_not_count_by_source_has_no_false_zero() -> None:
    async with engine(["vllm:generation_tokens_total 3\n"]) as (url, http):
        with pytest.raises(LiveError, match=r"w0 at .* does not count prompt tokens by their source"):
            await fetched_tokens(http, Worker("w0", url, "both", url))


@pytest.mark.parametrize("models", ["{}", '{"data": []}', '{"data": [{"id": "m"}]}', "[]"])
async def test_a_server_that_is_no_engine_is_named(models: str) -> None:
    async with engine([""], models) as (url, http):
        with pytest.raises(LiveError, match="is it a vLLM server"):
            await served_model(http, url)
