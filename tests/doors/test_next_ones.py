"""After a failure: what the conversations that come next get, and how often whoever failed is asked again."""

from __future__ import annotations

import asyncio

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import WAIT_S, Answer, Cluster

from .conftest import StartCluster

LONG = "a long task description " * 40
MANY = 40


async def newcomers(c: Cluster, count: int) -> list[Answer]:
    """So many conversations, one after the other."""
    return [await c.chat(LONG, conversation=f"next-{place}", max_tokens=2) for place in range(count)]


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_one_failure_does_not_poison_the_pair(cluster: StartCluster, leg: str) -> None:
    async with cluster(prefillers=1, decoders=1, probe_interval_s=60.0) as c:
        (c.prefillers if leg == "prefill" else c.decoders)[0].arm(Fault(status=500, times=1))
        assert (await c.chat(LONG, conversation="hurt", max_tokens=2)).status == 200
        answers = await newcomers(c, 10)
        assert [answer.status for answer in answers] == [200] * 10
        assert [answer.headers.get("x-conserve-prefiller") for answer in answers] == ["p0"] * 10, (
            "the next conversations are handed over by the same two"
        )
        await c.settled()


async def test_a_decoder_that_fails_every_turn_does_not_draw_every_newcomer(cluster: StartCluster) -> None:
    # It frees its blocks with each failure, so by room alone it would always be the best.
    async with cluster(prefillers=0, decoders=2, probe_interval_s=0.05) as c:
        c.decoders[0].arm(Fault(status=500))
        answers = await newcomers(c, MANY)
        failed = [answer for answer in answers if answer.status != 200]
        assert len(failed) <= 4, (
            f"{len(failed)} of {MANY} newcomers were sent to a decoder that serves nobody"
        )
        assert all(answer.decoder == "d1" for answer in answers if answer.status == 200)
        await c.settled()


async def test_a_prefiller_that_fails_every_turn_is_not_asked_every_time(cluster: StartCluster) -> None:
    async with cluster(prefillers=2, decoders=1, probe_interval_s=0.05) as c:
        c.prefillers[0].arm(Fault(status=500))
        answers = await newcomers(c, MANY)
        assert [answer.status for answer in answers] == [200] * MANY
        assert {answer.headers["x-conserve-prefiller"] for answer in answers} == {"p1"}
        assert len(c.prefillers[0].requests) <= 4, "a prefiller that fails costs every newcomer a round trip"
        await c.settled()


async def test_who_failed_is_asked_again_when_nobody_else_is_there(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(status=500, times=10))
        assert [answer.status for answer in await newcomers(c, 10)] == [500] * 10, (
            "its own answer, and at once"
        )
        assert [answer.status for answer in await newcomers(c, 10)] == [200] * 10
        await c.settled()


async def test_who_failed_gets_its_share_again_once_it_serves(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=2) as c:
        first = await c.chat(LONG, conversation="pinned", max_tokens=2)
        failing = c.decoder(first.decoder)
        failing.arm(Fault(status=500))
        for place in range(MANY):
            if (await c.chat(LONG, conversation=f"during-{place}", max_tokens=2)).status == 500:
                break
        failing.faults.clear()
        assert len(failing.requests) > 1, "it had its turn to fail"
        async with asyncio.timeout(WAIT_S):
            while await c.metric("conserve_worker_failing", worker=first.decoder):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)
        answers = await newcomers(c, MANY)
        assert {answer.status for answer in answers} == {200}
        assert sum(answer.decoder == first.decoder for answer in answers) >= MANY // 4
        await c.settled()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_decoder_is_no_failing_one(cluster: StartCluster, status: int) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(status=status, times=10))
        assert [answer.status for answer in await newcomers(c, 10)] == [status] * 10
        assert await c.metric("conserve_worker_failing", worker="d0") == 0
        await c.settled()
