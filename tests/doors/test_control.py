"""The routes beside the turns."""

from __future__ import annotations

import asyncio
import re

import pytest

from conserve.cli import main
from conserve_workers.mock import Fault
from tests.support.cluster import chat_body

from .conftest import StartCluster


async def test_models_are_merged_and_keep_their_length(cluster: StartCluster) -> None:
    async with cluster(worker={"max_model_len": 4096}) as c:
        answer = (await c.get("/v1/models")).json
        assert answer["object"] == "list"
        (card,) = answer["data"]
        assert (card["id"], card["max_model_len"], card["object"]) == ("mock", 4096, "model")


async def test_the_smallest_length_told_for_a_model_is_the_one_kept(cluster: StartCluster) -> None:
    async with cluster() as c:
        c.decoders[1].max_model_len = 2048
        await c.decoders[1].restart()
        await c.until_fleet(lambda fleet: [row["id"] for row in fleet["workers"]] == [0, 1, 3])
        assert (await c.get("/v1/models")).json["data"][0]["max_model_len"] == 2048


async def test_health_readiness_and_fleet(cluster: StartCluster) -> None:
    async with cluster() as c:
        assert (await c.get("/healthz")).status == 200
        assert (await c.get("/readyz")).status == 200
        fleet = await c.fleet()
        assert [(row["name"], row["role"], row["health"]) for row in fleet["workers"]] == [
            ("p0", "prefiller", "ready"),
            ("d0", "decoder", "ready"),
            ("d1", "decoder", "ready"),
        ]
        assert all(0 <= row["report_age_s"] < 5 for row in fleet["workers"])
        assert {row["kv_blocks"] for row in fleet["workers"] if row["role"] == "decoder"} == {4096}
        assert (fleet["booked_blocks"], fleet["waiting"], fleet["in_flight"]) == (0, 0, 0)
        assert fleet["roles"] == {"mode": "advise", "prefillers": 1, "advice": None}, (
            "nothing was measured yet"
        )


async def test_a_conversation_can_be_looked_at(cluster: StartCluster) -> None:
    async with cluster() as c:
        answer = await c.chat("hi", conversation="task-42")
        view = (await c.get("/v1/conversations/task-42")).json
        assert (view["id"], view["phase"], view["turn"], view["in_flight"]) == ("task-42", "pinned", 1, 0)
        assert view["decoder"] == answer.decoder
        assert view["key"] == answer.headers["x-conserve-conversation"]
        assert view["blocks"] >= 1
        assert view["ttfet_s"] > 0


async def test_a_command_tells_the_key_that_the_log_has_also_when_the_conversation_is_over(
    cluster: StartCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, ["conversation", "task/42", c.url, *words])
        return status, *capsys.readouterr()

    async with cluster() as c:
        answer = await c.post(chat_body("hi"), conversation="task/42", key="sk-ours")
        key = answer.headers["x-conserve-conversation"]
        status, _, wrong = await told()
        assert (status, key in wrong) == (1, False), "nobody else's conversation has this key"
        monkeypatch.setenv("CONSERVE_CALLER_AUTHORIZATION", "Bearer sk-ours")
        status, shown, _ = await told()
        assert status == 0
        assert re.search(rf"^key +{key}$", shown, re.MULTILINE), shown
        assert re.search(rf"^decoder +{answer.decoder} ", shown, re.MULTILINE), shown
        assert await told("--key") == (0, f"{key}\n", "")
        await c.delete("/v1/conversations/task%2F42", key="sk-ours")
        assert await told("--key") == (0, f"{key}\n", "")
        status, _, over = await told()
        assert (status, over.strip().endswith(f"in the log it is {key}")) == (1, True), over


async def test_the_effective_token_waits_for_a_turn_without_tool_call(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(tool_call=True, times=2))
        for stream in (True, False):
            await c.post(chat_body("hi", stream=stream), conversation="a")
            assert (await c.get("/v1/conversations/a")).json["ttfet_s"] is None, "tool calls are no answer"
        await c.post(chat_body("hi", stream=True), conversation="a")
        assert (await c.get("/v1/conversations/a")).json["ttfet_s"] > 0


async def test_metrics_tell_of_the_router_and_the_door(cluster: StartCluster) -> None:
    async with cluster() as c:
        await c.chat("hi", conversation="a", stream=True)
        await c.post(b"nonsense")
        await c.settled()
        answer = await c.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        route = "/v1/chat/completions"
        assert await c.metric("conserve_door_requests_total", route=route, status="200") == 1
        assert await c.metric("conserve_door_requests_total", route=route, status="400") == 1
        assert await c.metric("conserve_door_relayed_bytes_total") > 100
        names = [line.split()[2] for line in answer.body.decode().splitlines() if line.startswith("# TYPE")]
        assert len(names) == len(set(names)), "each metric has one type"
        assert any(not name.startswith("conserve_door_") for name in names), "the router's own are there"


async def test_a_control_key_locks_the_fleet_and_the_metrics_only(cluster: StartCluster) -> None:
    async with cluster(control_key="open-sesame") as c:
        for path in ("/v1/fleet", "/metrics"):
            refused = await c.get(path)
            assert (refused.status, refused.code) == (401, "invalid_api_key")
            assert (await c.get(path, key="open-sesame!")).status == 401
            assert (await c.get(path, key="open-sesame")).status == 200
        assert (await c.get("/healthz")).status == 200
        assert (await c.get("/v1/models")).status == 200
        assert (await c.chat("hi")).status == 200
