"""The two halves of a first turn, as a router drives them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Cluster
from tests.workers.harness import prefill, text_of

CHAT = "/v1/chat/completions"
EXTERNAL = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
NOBODY: dict[str, object] = {"remote_engine_id": "nobody", "remote_port": 1}
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"
UNNOTICED = pytest.mark.not_for(
    "vllm", reason="it pulls from the engine that it knows, by block number, and asks for neither"
)


def body(subject: str) -> dict[str, Any]:
    text = f"Read this: {subject} are long, wet and old. " * 9
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16}


def test_prefill_answer_says_where_the_blocks_are(cluster: Cluster) -> None:
    params = prefill(cluster.prefiller, CHAT, body("rivers"))
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    keys = {
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
    }
    assert set(params) >= keys
    cluster.decoder.post(CHAT, {**body("rivers"), "kv_transfer_params": params})


def test_decoder_continues_with_the_same_text_and_computes_almost_nothing(cluster: Cluster) -> None:
    wanted = body("valleys")
    alone = text_of(cluster.plain.post(CHAT, wanted))
    params = prefill(cluster.prefiller, CHAT, wanted)
    before = cluster.decoder.metrics()
    reply = cluster.decoder.post(CHAT, {**wanted, "kv_transfer_params": params})
    after = cluster.decoder.metrics()
    assert text_of(reply) == alone
    usage = reply.body["usage"]
    assert usage["completion_tokens"] == 16, "the decoder makes the first token itself"
    fetched = after[EXTERNAL] - before[EXTERNAL]
    assert fetched >= usage["prompt_tokens"] - 32, "all but what an earlier prompt left here"
    assert after[COMPUTED] - before[COMPUTED] <= 1


def test_streamed_continuation_says_the_same(cluster: Cluster) -> None:
    wanted = body("lakes")
    alone = text_of(cluster.plain.post(CHAT, wanted))
    params = prefill(cluster.prefiller, CHAT, wanted)
    events = list(cluster.decoder.stream(CHAT, **{**wanted, "kv_transfer_params": params}))
    text = "".join(
        choice["delta"].get("content") or "" for event in events[:-1] for choice in event["choices"]
    )
    assert text == alone


def test_second_turn_needs_no_handoff(cluster: Cluster) -> None:
    wanted = body("seas")
    params = prefill(cluster.prefiller, CHAT, wanted)
    answer = text_of(cluster.decoder.post(CHAT, {**wanted, "kv_transfer_params": params}))
    turn = {
        **wanted,
        "messages": [
            *wanted["messages"],
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And then?"},
        ],
    }
    reply = cluster.decoder.post(CHAT, turn)
    assert text_of(reply) == text_of(cluster.plain.post(CHAT, turn))
    usage = reply.body["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] - 128


@pytest.mark.parametrize(
    "change",
    [
        NOBODY,
        pytest.param({"remote_port": 1}, marks=UNNOTICED),
        pytest.param({"remote_request_id": "unknown"}, marks=UNNOTICED),
    ],
    ids=["nobody", "wrong port", "unknown request"],
)
def test_blocks_that_cannot_be_fetched_are_a_server_error(
    cluster: Cluster, change: dict[str, object]
) -> None:
    wanted = body(f"swamps of {sorted(change)}")
    params = {**prefill(cluster.prefiller, CHAT, wanted), **change}
    reply = cluster.decoder.post(CHAT, {**wanted, "kv_transfer_params": params})
    assert reply.status == 500
    assert reply.body["error"]["message"]
    cluster.decoder.await_metric("vllm:num_requests_running", 0)


def test_failed_handoff_is_no_begun_stream(cluster: Cluster) -> None:
    wanted = body("deserts")
    params = {**prefill(cluster.prefiller, CHAT, wanted), **NOBODY}
    told = {**wanted, "stream": True, "kv_transfer_params": params}
    if cluster.engine == "vllm":
        # It begins the stream before it has the blocks, a chat's with the role, and tells the failure in it.
        *events, error, done = cluster.decoder.stream(CHAT, **told)
        assert error["error"]["code"] == 500
        assert done == "[DONE]"
        assert not any(choice["delta"].get("content") for event in events for choice in event["choices"])
        return
    assert cluster.decoder.post(CHAT, told).status == 500
