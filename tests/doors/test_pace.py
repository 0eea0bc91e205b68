"""What clients felt is measured by the router's own clock, for each tier, and judged by the SLO."""

from __future__ import annotations

import asyncio
import re

from conserve_workers.mock import Fault
from tests.doors.conftest import StartCluster
from tests.support.cluster import Cluster


async def figures(cluster: Cluster) -> dict[str, float]:
    text = (await cluster.get("/metrics")).body.decode()
    return {name: float(value) for name, value in re.findall(r"^(conserve_\S+) (\S+)$", text, re.MULTILINE)}


async def test_each_tier_has_its_times_and_its_goodput(cluster: StartCluster) -> None:
    async with cluster(slo_ttft_ms=60_000, slo_tbt_ms=60_000) as running:
        await running.chat("hello", conversation="task-42", stream=True)
        await running.chat("hello", conversation="task-42", stream=True)
        seen = await figures(running)
    tier = 'tier="default"'
    assert seen[f'conserve_ttft_seconds_count{{{tier},kind="first"}}'] == 1
    assert seen[f'conserve_ttft_seconds_count{{{tier},kind="pinned"}}'] == 1
    assert seen[f"conserve_prefill_seconds_count{{{tier}}}"] == 1, "the second turn needs no prefiller"
    assert seen[f"conserve_queue_wait_seconds_count{{{tier}}}"] == 1, "shown apart, for who is placed"
    assert seen[f"conserve_ttfet_seconds_count{{{tier}}}"] == 1, "one for each conversation"
    tokens = seen[f'conserve_slo_output_tokens_total{{{tier},met="yes"}}']
    assert tokens > 2
    assert seen[f"conserve_tbt_seconds_count{{{tier}}}"] == tokens - 2, "one gap less than tokens, per turn"
    assert seen[f'conserve_slo_turns_total{{{tier},met="yes"}}'] == 2
    assert seen[f'conserve_slo_turns_total{{{tier},met="no"}}'] == 0


async def test_a_streams_tokens_are_counted_while_they_flow_and_each_once(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as running:
        running.decoders[0].arm(Fault(interval_s=0.05, tokens=40))
        turn = asyncio.create_task(running.chat("hello", conversation="task-42", stream=True))
        await running.until_fleet(lambda fleet: fleet["workers"][0]["output_tokens"] > 4)
        assert not turn.done(), "its end is two seconds away"
        await turn
        fleet = await running.until_fleet(lambda fleet: fleet["in_flight"] == 0)
        assert fleet["workers"][0]["output_tokens"] == 40


async def test_a_turn_slower_than_the_slo_is_no_goodput(cluster: StartCluster) -> None:
    async with cluster(slo_ttft_ms=0.001) as running:
        await running.chat("hello", conversation="task-42", stream=True)
        seen = await figures(running)
    assert seen['conserve_slo_turns_total{tier="default",met="no"}'] == 1
    assert seen['conserve_slo_turns_total{tier="default",met="yes"}'] == 0
