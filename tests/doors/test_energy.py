"""`conserve serve` counts joules, and `conserve top` shows them, whichever door serves the turns."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
import pytest

from conserve_workers.mock import Fault
from tests.doors.conftest import StartCluster
from tests.doors.metered import Metered
from tests.support.cluster import CHAT, chat_body


async def top(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "conserve.cli", "top", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_joules_of_a_turn_reach_its_workers_and_its_conversation(metered: Metered) -> None:
    url = metered.url
    async with aiohttp.ClientSession() as client:
        metered.prefiller.arm(Fault(latency_s=0.3))
        metered.decoder.arm(Fault(interval_s=0.05))
        headers = {"x-conversation-id": "task-42"}
        async with client.post(url + CHAT, json=chat_body(stream=True), headers=headers) as answer:
            assert answer.status == 200
            await answer.read()
        _, shown, _ = await top(url, "--once", "--json", "--interval-s", "0.2")
        async with client.get(f"{url}/v1/energy") as answer:
            told: dict[str, Any] = await answer.json()
        async with client.get(f"{url}/v1/conversations/task-42") as answer:
            conversation = await answer.json()
        async with client.get(f"{url}/metrics") as answer:
            metrics = await answer.text()
    p0, d0 = told["workers"]["p0"], told["workers"]["d0"]
    for worker, zone in ((p0, "gpu0"), (d0, "gpu1")):
        parts = worker["prefill_j"] + worker["decode_j"] + worker["idle_j"]
        assert parts == pytest.approx(told["zones"][zone]["energy_j"], abs=2e-6)
    assert p0["prefill_j"] > 10, "0.3 s at 100 W are 30 J"
    assert p0["decode_j"] == 0
    assert d0["decode_j"] > 10
    assert 0 < conversation["energy_j"] <= p0["prefill_j"] + d0["decode_j"] + d0["prefill_j"]
    assert conversation["j_per_token"] == pytest.approx(conversation["energy_j"] / conversation["tokens"])
    assert 'conserve_energy_joules_total{worker="p0",tier="fast",phase="prefill"}' in metrics
    assert 'conserve_joules_per_token{tier="slow"}' in metrics
    view = json.loads(shown)
    assert {row["name"]: row["tier"] for row in view["workers"]} == {"p0": "fast", "d0": "slow"}
    assert view["power_w"] > 0
    assert all(row["j_per_token"] > 0 for row in view["workers"])


async def test_top_shows_a_fleet_without_a_counter(cluster: StartCluster) -> None:
    async with cluster() as running:
        await running.chat("hello", conversation="task-42", stream=True)
        status, shown, err = await top(running.url, "--once", "--interval-s", "0.1")
        assert (status, err) == (0, "")
        _, as_json, _ = await top(running.url + "/v1", "--once", "--json", "--interval-s", "0.1")
    head, _, rest = shown.partition("\n")
    assert head.startswith(f"{running.url} · 1 conversation · 0 under way")
    assert rest.split()[:4] == ["worker", "role", "tier", "health"]
    assert "no energy counter (all): energy is counted by conserve serve" in rest
    view = json.loads(as_json)
    assert {row["name"] for row in view["workers"]} == {"p0", "d0", "d1"}
    assert sum(row["pins"] for row in view["workers"]) == 1
    (tier,) = view["tiers"]
    assert (tier["tier"], tier["turns"], tier["good_turns"]) == ("default", 1, 1.0)
    shortest, longest = tier["ttft_p50_s"]
    assert 0 < shortest == pytest.approx(longest), "there was one"
    assert view["power_w"] is None


async def test_top_without_the_control_key_says_which_variable(cluster: StartCluster) -> None:
    async with cluster(control_key="s3cret") as running:
        status, _, err = await top(running.url, "--once")
    assert status == 1
    assert "set CONSERVE_CONTROL_KEY" in err
