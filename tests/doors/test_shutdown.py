"""A door that stops lets its streams finish and refuses new turns politely."""

from __future__ import annotations

import asyncio

from conserve_workers.mock import Fault
from tests.support.cluster import chat_body

from .conftest import HOLDING, StartCluster


async def test_streams_finish_and_new_turns_are_refused(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(interval_s=0.02, tokens=25, times=1))
        stream = asyncio.create_task(c.chat("hi", stream=True))
        await c.decoders[0].arrived(1)
        c.door.begin_stop()
        await c.until_fleet(lambda fleet: fleet["draining"])
        assert (await c.get("/readyz")).status == 503
        assert (await c.get("/healthz")).status == 200
        refused = await c.chat("hi")
        assert (refused.status, refused.code) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        finished = await stream
        assert finished.events[-1] == "[DONE]"
        assert len(finished.text.split()) == 25
        await c.door.stop()


async def test_streams_that_outlast_the_deadline_end_with_an_error_event(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, shutdown_timeout_s=0.2) as c:
        c.decoders[0].arm(Fault(interval_s=0.02, tokens=10_000))
        stream = asyncio.create_task(c.chat("hi", stream=True))
        whole = asyncio.create_task(c.chat("hi"))
        recorded = await c.decoders[0].arrived(2)
        await c.until_fleet(lambda fleet: fleet["in_flight"] == 2)
        c.door.begin_stop()
        ended = await stream
        assert ended.events[-1]["error"]["code"] == "draining"
        answer = await whole
        assert (answer.status, answer.code) == (503, "draining")
        async with asyncio.timeout(1.0):
            await recorded.done.wait()
        await c.door.stop()


async def test_those_in_line_are_told_at_the_deadline(cluster: StartCluster) -> None:
    async with cluster(
        prefillers=0, decoders=1, worker={"kv_blocks": 100}, shutdown_timeout_s=0.1, **HOLDING
    ) as c:
        await c.chat("x" * 4_000, conversation="a", max_tokens=2)
        waiting = asyncio.create_task(c.post(chat_body("y" * 4_000), conversation="b"))
        await c.until_fleet(lambda fleet: fleet["waiting"] == 1)
        c.door.begin_stop()
        assert (await waiting).code == "draining"
        await c.door.stop()
