"""Retention `pin`: decoders are asked to keep every turn, and what they say of it is not the client's."""

from __future__ import annotations

import pytest

from conserve_workers.mock import Fault

from .conftest import StartCluster

LONG = "a long task description " * 40


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_later_turns_ask_their_decoder_to_keep_them(cluster: StartCluster, stream: bool) -> None:
    async with cluster(decoders=1, retention="pin") as c:
        history = [LONG]
        for turn in (1, 2, 3):
            answer = await c.chat(*history, conversation="a", stream=stream)
            assert (answer.status, answer.turn) == (200, turn)
            if not stream:
                assert answer.json.get("kv_transfer_params") is None
            history += [answer.text, f"more of turn {turn}"]
        asked = c.decoders[0].requests
        assert [(each.leg, each.keeps) for each in asked] == [
            ("decode", False),
            ("decode", True),
            ("decode", True),
        ], "the first brings what the prefiller said"
        assert len(c.prefillers[0].requests) == 1
        assert await c.metric("conserve_dispatch_total", kind="handoffs_malformed") == 0


@pytest.mark.parametrize("told", [[1], "x", 7, True, {}, [{"remote_port": 1}]], ids=str)
async def test_what_is_no_handoff_reaches_nobody(cluster: StartCluster, told: object) -> None:
    async with cluster(decoders=1, retention="pin") as c:
        c.prefillers[0].arm(Fault(params=told, times=1))
        first = await c.chat(LONG, conversation="a")
        assert first.status == 200
        decode = c.decoders[0].requests[0]
        assert decode.keeps, "computed here, as without a prefiller"
        c.decoders[0].arm(Fault(params=told, times=1))
        second = await c.chat(LONG, first.text, "more", conversation="a")
        assert (second.status, second.json["kv_transfer_params"]) == (200, None)
        assert await c.metric("conserve_dispatch_total", kind="handoffs_malformed") == 2
        assert await c.metric("conserve_dispatch_total", kind="prefills_on_decoder") == 1
