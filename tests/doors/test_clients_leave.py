"""A client that leaves takes its upstream request along at once and gives its booking back, at every stage."""

from __future__ import annotations

import asyncio
import json

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import CHAT, Cluster, chat_body
from tests.support.raw import RawClient, connect, request

from .conftest import HOLDING, StartCluster

LONG = "a long task description " * 40
ABORT_S = 0.2


def turn(*contents: str, conversation: str = "a", **fields: object) -> bytes:
    body = json.dumps(chat_body(*contents, **fields)).encode()
    return request(CHAT, body, f"x-conversation-id: {conversation}")


async def leaves(raw: RawClient, gently: bool) -> None:
    if gently:
        raw.writer.close()
    else:
        raw.reset()


async def gone_within(c: Cluster, recorded: object, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await recorded.done.wait()  # type: ignore[attr-defined]
    assert recorded.aborted, "the worker saw its client leave"  # type: ignore[attr-defined]
    await c.settled()


@pytest.mark.parametrize("gently", [True, False], ids=["closes", "resets"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_during_prefill(cluster: StartCluster, stream: bool, gently: bool) -> None:
    async with cluster() as c, connect(c.url) as raw:
        c.prefillers[0].arm(Fault(leg="prefill", stall_head=True, times=1))
        await raw.send(turn(LONG, stream=stream))
        prefill = await c.prefillers[0].arrived(1)
        await leaves(raw, gently)
        await gone_within(c, prefill, ABORT_S)
        await c.nothing_booked()
        assert (await c.chat(LONG, conversation="a")).turn == 1, (
            "a first turn that failed leaves no conversation"
        )


@pytest.mark.parametrize("gently", [True, False], ids=["closes", "resets"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_before_the_decoders_head(cluster: StartCluster, stream: bool, gently: bool) -> None:
    async with cluster(prefillers=0, decoders=1) as c, connect(c.url) as raw:
        c.decoders[0].arm(Fault(stall_head=True, times=1))
        await raw.send(turn(LONG, stream=stream))
        decode = await c.decoders[0].arrived(1)
        await leaves(raw, gently)
        await gone_within(c, decode, ABORT_S)
        await c.nothing_booked()


@pytest.mark.parametrize("gently", [True, False], ids=["closes", "resets"])
async def test_in_mid_stream(cluster: StartCluster, gently: bool) -> None:
    async with cluster(decoders=1) as c, connect(c.url) as raw:
        first = await c.chat(LONG, conversation="a")
        held = (await c.settled())["booked_blocks"]
        c.decoders[0].arm(Fault(interval_s=0.01, tokens=10_000, times=1))
        await raw.send(turn(LONG, first.text, "more " * 200, stream=True))
        decode = await c.decoders[0].arrived(2)
        await raw.reader.readuntil(b'"content":')
        await leaves(raw, gently)
        await gone_within(c, decode, ABORT_S)
        assert (await c.settled())["booked_blocks"] == held, "the growth of the turn is given back"


async def test_while_waiting_in_line(cluster: StartCluster) -> None:
    async with (
        cluster(prefillers=0, decoders=1, worker={"kv_blocks": 100}, **HOLDING) as c,
        connect(c.url) as raw,
    ):
        assert (await c.chat("x" * 4_000, conversation="big", max_tokens=2)).status == 200
        await raw.send(turn("y" * 3_000, conversation="late"))
        await c.until_fleet(lambda fleet: fleet["waiting"] == 1)
        raw.reset()
        async with asyncio.timeout(ABORT_S):
            await c.until_fleet(lambda fleet: fleet["waiting"] == 0)
        assert len(c.decoders[0].requests) == 1
        assert (await c.delete("/v1/conversations/big")).status == 200
        await c.nothing_booked()


async def test_before_the_body_is_complete(cluster: StartCluster) -> None:
    async with cluster() as c, connect(c.url) as raw:
        await raw.send(request(CHAT, b'{"model"', "content-length: 1000"))
        raw.reset()
        await c.nothing_booked()
        assert not any(mock.requests for mock in c.workers)


async def test_many_clients_leaving_at_random_leave_nothing_behind(cluster: StartCluster) -> None:
    import random

    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    async with cluster(prefillers=1, decoders=2) as c:
        for mock in c.workers:
            mock.arm(Fault(latency_s=0.01, interval_s=0.002))

        async def one(place: int) -> None:
            stay = asyncio.create_task(c.chat(LONG, conversation=f"c{place % 10}", stream=place % 3 > 0))
            done, _ = await asyncio.wait({stay}, timeout=chance.random() * 0.08)
            if not done:
                stay.cancel()
                await asyncio.gather(stay, return_exceptions=True)

        await asyncio.gather(*(one(place) for place in range(80)))
        await c.settled()
        for place in range(10):
            await c.delete(f"/v1/conversations/c{place}")
        await c.nothing_booked()
        assert (await c.fleet())["conversations"] == 0
