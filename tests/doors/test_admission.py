"""The waiting line as a client sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.cluster import chat_body

from .conftest import HOLDING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tests.support.cluster import Cluster

    from .conftest import StartCluster

# 4,000 characters are 1,000 tokens, 63 blocks of 16; a decoder of 100 blocks has room under the watermark (80) for one.
BIG = "x" * 4_000
SMALL_DECODER = {"kv_blocks": 100}


def holding(cluster: StartCluster, **settings: Any) -> AbstractAsyncContextManager[Cluster]:
    return cluster(prefillers=0, decoders=1, worker=SMALL_DECODER, **HOLDING, **settings)


async def test_a_newcomer_waits_in_line_until_there_is_room(cluster: StartCluster) -> None:
    async with holding(cluster) as c:
        assert (await c.chat(BIG, conversation="a", max_tokens=2)).status == 200
        waiting = asyncio.create_task(c.chat(BIG, conversation="b", max_tokens=2))
        await c.until_fleet(lambda fleet: fleet["waiting"] == 1)
        assert (await c.delete("/v1/conversations/a")).status == 200
        assert (await waiting).status == 200


async def test_the_line_is_first_come_first_served(cluster: StartCluster) -> None:
    async with holding(cluster) as c:
        assert (await c.chat(BIG, conversation="a", max_tokens=2)).status == 200
        served: list[str] = []

        async def wait(name: str) -> None:
            answer = await c.chat(BIG, conversation=name, max_tokens=2)
            assert answer.status == 200
            served.append(name)
            await c.delete(f"/v1/conversations/{name}")

        tasks = []
        for place, name in enumerate("bcde", 1):
            tasks.append(asyncio.create_task(wait(name)))
            await c.until_fleet(lambda fleet, place=place: fleet["waiting"] == place)
        await c.delete("/v1/conversations/a")
        await asyncio.gather(*tasks)
        assert served == list("bcde")
        await c.nothing_booked()


async def test_waiting_too_long_is_429_with_retry_after(cluster: StartCluster) -> None:
    async with holding(cluster, queue_timeout_s=0.1) as c:
        await c.chat(BIG, conversation="a", max_tokens=2)
        answer = await c.chat(BIG, conversation="b")
        assert (answer.status, answer.code) == (429, "queue_timeout"), answer.body
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert len(c.decoders[0].requests) == 1
        await c.delete("/v1/conversations/a")
        await c.nothing_booked()


async def test_a_full_line_sheds_at_once(cluster: StartCluster) -> None:
    async with holding(cluster, queue_limit=1) as c:
        await c.chat(BIG, conversation="a", max_tokens=2)
        waiting = asyncio.create_task(c.chat(BIG, conversation="b", max_tokens=2))
        await c.until_fleet(lambda fleet: fleet["waiting"] == 1)
        shed = await c.post(chat_body(BIG, stream=True), conversation="c")
        assert (shed.status, shed.code) == (429, "overloaded")
        assert int(shed.headers["retry-after"]) >= 1
        await c.delete("/v1/conversations/a")
        assert (await waiting).status == 200


async def test_a_pinned_turn_passes_the_line(cluster: StartCluster) -> None:
    async with holding(cluster) as c:
        first = await c.chat(BIG, conversation="a", max_tokens=2)
        waiting = asyncio.create_task(c.chat(BIG, conversation="b", max_tokens=2))
        await c.until_fleet(lambda fleet: fleet["waiting"] == 1)
        second = await c.chat(BIG, first.text, "y" * 1_200, conversation="a", max_tokens=2)
        assert second.status == 200, "the tail may use the blocks above the watermark"
        assert second.turn == 2
        await c.delete("/v1/conversations/a")
        assert (await waiting).status == 200


async def test_a_newcomer_takes_the_room_of_idle_conversations(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, worker=SMALL_DECODER) as c:
        for name in "abc":
            assert (await c.chat(BIG, conversation=name, max_tokens=2)).status == 200
        settled = await c.settled()
        assert settled["booked_blocks"] <= 100
        assert settled["conversations"] == 3, "they stay pinned"


async def test_idle_conversations_that_grow_do_not_wait_for_each_other(cluster: StartCluster) -> None:
    half, more = "x" * 2_400, "y" * 1_600
    async with cluster(prefillers=0, decoders=1, worker=SMALL_DECODER, queue_timeout_s=0.1) as c:
        first = {name: await c.chat(half, conversation=name, max_tokens=2) for name in "ab"}
        for name, answer in first.items():
            grown = await c.chat(half, answer.text, more, conversation=name, max_tokens=2)
            assert (grown.status, grown.turn) == (200, 2), grown.body
        assert (await c.settled())["booked_blocks"] <= 100
