"""The handoff between processes: equal texts, proof that blocks moved, and what happens when they cannot."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.workers.harness import Worker, hand_over, prefill, text_of, tiny

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EXTERNAL = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"
RESIDENT = "vllm:prompt_tokens_by_source_total{local_cache_hit}"


def question(number: int, length: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Agent {number}: " + f"fact {number * 31} and " * length}]


def rises(worker: Worker, before: dict[str, float], *names: str) -> list[float]:
    after = worker.metrics()
    return [after[name] - before[name] for name in names]


def test_many_conversations_at_once_equal_one_plain_instance(
    prefiller: Worker, decoder: Worker, plain: Worker
) -> None:
    """Ten conversations of four turns; only the first turn of each is handed over."""

    def converse(number: int) -> list[tuple[str, str, int]]:
        messages = question(number, 2 + 7 * number)
        turns = []
        for turn in range(4):
            body = {"messages": messages, "temperature": 0, "max_tokens": 20 + number}
            alone = plain.post(CHAT, body)
            ours = hand_over(prefiller, decoder, CHAT, body) if turn == 0 else decoder.post(CHAT, body)
            unseen = (
                ours.body["usage"]["prompt_tokens"]
                - ours.body["usage"]["prompt_tokens_details"]["cached_tokens"]
            )
            turns.append((text_of(ours), text_of(alone), unseen))
            messages = [
                *messages,
                {"role": "assistant", "content": text_of(ours)},
                {"role": "user", "content": f"Tool {turn} said {number}."},
            ]
        return turns

    with ThreadPoolExecutor(10) as threads:
        conversations = list(threads.map(converse, range(10)))
    for number, turns in enumerate(conversations):
        for turn, (ours, alone, unseen) in enumerate(turns):
            assert ours == alone, f"conversation {number}, turn {turn}"
            # Between the turns: the last generated token, "<|im_end|>\n", the user's message with its marks.
            most = 0 if turn == 0 else 80
            assert unseen <= most, f"conversation {number}, turn {turn} computed {unseen} prompt tokens"
    assert len({turns[0][0] for turns in conversations}) == 10, "ten prompts, ten texts"
    decoder.await_metric("conserve_tiny:kv_blocks_used", 0)
    prefiller.await_metric("conserve_tiny:kv_blocks_used", 0)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 128, 129])
def test_blocks_move_and_nothing_is_computed_twice(
    prefiller: Worker, decoder: Worker, plain: Worker, length: int
) -> None:
    prompt = [(7 * position + length) % 90 for position in range(length)]
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
    before, sent_before = decoder.metrics(), prefiller.metrics()
    ours = hand_over(prefiller, decoder, TEXT, body)
    assert text_of(ours) == text_of(plain.post(TEXT, body))
    external, computed, resident = rises(decoder, before, EXTERNAL, COMPUTED, RESIDENT)
    assert external + computed + resident == length
    assert computed <= 1
    if length > 1:
        assert external > 0
        assert ours.body["usage"]["prompt_tokens_details"]["cached_tokens"] == length
    prefiller.await_metric("conserve_tiny:handoff_leases", 0)
    assert rises(prefiller, sent_before, "conserve_tiny:handoffs_sent_total") == [1]


def test_only_what_is_not_resident_is_fetched(prefiller: Worker, decoder: Worker) -> None:
    prompt = [(11 * position + 5) % 90 for position in range(100)]
    hand_over(prefiller, decoder, TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 2})
    before = decoder.metrics()
    longer = [*prompt, *range(60)]
    hand_over(prefiller, decoder, TEXT, {"prompt": longer, "temperature": 0, "max_tokens": 2})
    assert rises(decoder, before, RESIDENT, EXTERNAL, COMPUTED) == [96, 64, 0], "6 full blocks of 16 are here"


def test_second_fetch_is_refused_and_counted(prefiller: Worker, decoder: Worker) -> None:
    prompt = [(13 * position) % 90 for position in range(50)]
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "max_tokens": 4}
    params = prefill(prefiller, TEXT, body)
    assert decoder.post(TEXT, {**body, "kv_transfer_params": params}).status == 200
    prefiller.await_metric("conserve_tiny:handoff_leases", 0)
    before = decoder.metrics()
    again = decoder.post(TEXT, {**body, "prompt": [*prompt[:-1], 1], "kv_transfer_params": params})
    assert again.status == 500
    assert "no blocks are kept" in again.body["error"]["message"]
    assert rises(decoder, before, "conserve_tiny:handoffs_failed_total") == [1]
    decoder.await_metric("conserve_tiny:kv_blocks_used", 0)


def test_ended_lease_is_refused_and_never_answered_with_other_blocks(decoder: Worker) -> None:
    with tiny("--role", "prefiller", "--lease-s", "0.01") as hasty:
        body = {"prompt": [(17 * position) % 90 for position in range(70)], "temperature": 0, "max_tokens": 4}
        params = prefill(hasty, TEXT, body)
        hasty.await_metric("conserve_tiny:handoffs_expired_total", 1)
        late = decoder.post(TEXT, {**body, "kv_transfer_params": params})
        assert late.status == 500
        assert "its lease ended" in late.body["error"]["message"]
        assert hasty.metrics()["conserve_tiny:handoffs_refused_total"] == 1


def test_another_engine_at_the_same_address_is_refused(prefiller: Worker, decoder: Worker) -> None:
    body = {"prompt": [(19 * position) % 90 for position in range(70)], "temperature": 0, "max_tokens": 4}
    params = {**prefill(prefiller, TEXT, body), "remote_engine_id": "0" * 32}
    reply = decoder.post(TEXT, {**body, "kv_transfer_params": params})
    assert (reply.status, reply.body["error"]["code"]) == (500, "engine_error")
    assert "this worker is engine" in reply.body["error"]["message"]


def test_params_of_another_prompt_are_refused(prefiller: Worker, decoder: Worker) -> None:
    body = {"prompt": [1, 2, 3, 4], "temperature": 0, "max_tokens": 4}
    params = prefill(prefiller, TEXT, body)
    reply = decoder.post(TEXT, {**body, "prompt": [1, 2, 3], "kv_transfer_params": params})
    assert (reply.status, reply.body["error"]["param"]) == (400, "kv_transfer_params")


@pytest.mark.parametrize(("policy", "status"), [("fail", 500), ("recompute", 200)])
def test_dead_prefiller(plain: Worker, policy: str, status: int) -> None:
    body = {"prompt": [(23 * position) % 90 for position in range(70)], "temperature": 0, "max_tokens": 6}
    with tiny("--kv-load-failure-policy", policy) as decoder:
        with tiny("--role", "prefiller") as doomed:
            params = prefill(doomed, TEXT, body)
            doomed.process.send_signal(signal.SIGKILL)
            doomed.process.wait()
        reply = decoder.post(TEXT, {**body, "kv_transfer_params": params})
        assert reply.status == status
        if status == 200:
            assert text_of(reply) == text_of(plain.post(TEXT, body))
        else:
            assert "cannot fetch" in reply.body["error"]["message"]
        assert decoder.metrics()["conserve_tiny:handoffs_failed_total"] == 1
        decoder.await_metric("conserve_tiny:kv_blocks_used", 0)


def test_workers_of_different_block_size_say_so(prefiller: Worker) -> None:
    body = {"prompt": [(29 * position) % 90 for position in range(70)], "temperature": 0, "max_tokens": 6}
    with tiny("--block-size", "32") as other:
        reply = other.post(TEXT, {**body, "kv_transfer_params": prefill(prefiller, TEXT, body)})
    assert reply.status == 500
    assert (
        "same model and block size" in reply.body["error"]["message"]
        or "has 5 blocks" in reply.body["error"]["message"]
    )


def test_shortage_on_both_sides_changes_no_text(plain: Worker) -> None:
    """Twelve conversations on a decoder with room for three: preempted, evicted, computed again, never mixed up."""
    with (
        tiny("--role", "prefiller", "--kv-blocks", "160") as prefiller,
        tiny("--role", "decoder", "--kv-blocks", "90") as decoder,
    ):

        def converse(number: int) -> list[bool]:
            messages = question(number, 20 + 3 * number)
            equal = []
            for turn in range(3):
                body = {"messages": messages, "temperature": 0, "max_tokens": 30}
                alone = text_of(plain.post(CHAT, body))
                ours = hand_over(prefiller, decoder, CHAT, body) if turn == 0 else decoder.post(CHAT, body)
                equal.append(text_of(ours) == alone)
                messages = [
                    *messages,
                    {"role": "assistant", "content": alone},
                    {"role": "user", "content": f"More {turn}."},
                ]
            return equal

        with ThreadPoolExecutor(12) as threads:
            assert all(all(equal) for equal in threads.map(converse, range(12)))
        assert decoder.metrics()["conserve_tiny:kv_blocks_evicted_total"] > 0
        decoder.await_metric("conserve_tiny:kv_blocks_used", 0)
