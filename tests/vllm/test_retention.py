"""What keeps an idle conversation's KV: the router's books alone (`cache`), or the engine as well (`pin`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.vllm.door import Door, door_over
from tests.vllm.servers import BLOCK_SIZE, Forge, alone, completion, token_ids
from tests.vllm.small import KV_BLOCKS, Small, start_small

TTL_S = 15
ANSWER = 16
RECOMPUTED = "conserve_recomputed_tokens_total"
EVICTED = "conserve_idle_kv_evicted_blocks_total"


@pytest.fixture(scope="module")
def shared_pinning(forge: Forge) -> Iterator[Small]:
    """The small decoder, told to keep what finished turns leave."""
    yield start_small(forge, "pin", retention_ttl_s=TTL_S)
    forge.kill("pin")


@pytest.fixture
def pinning(shared_pinning: Small) -> Small:
    """The same, once it keeps nothing of before."""
    shared_pinning.forge["pin"].await_metric("vllm:kv_cache_usage_perc", 0)
    shared_pinning.forget()
    return shared_pinning


@pytest.fixture
def door(forge: Forge, pinning: Small, tmp_path: Path) -> Iterator[Door]:
    """A router that knows of it."""
    with door_over(
        forge,
        tmp_path / "door.log",
        decoders=["pin"],
        options=pinning.options(),
        retention="pin",
        retention_ttl_s=TTL_S,
    ) as made:
        yield made


def blocks(tokens: int) -> int:
    """Blocks that so many tokens need."""
    return -(-tokens // BLOCK_SIZE)


def test_streamed_turns_are_kept_too(forge: Forge, pinning: Small, door: Door) -> None:
    prompt = token_ids(501, 300)
    first = door.stream(completion(prompt), "streams")
    assert pinning.usage_blocks() == blocks(300 + ANSWER)
    prompt = [*prompt, *first.token_ids, *token_ids(502, 60)]
    second = door.stream(completion(prompt), "streams")
    assert second.token_ids == alone(forge, prompt)
    assert pinning.usage_blocks() == blocks(len(prompt) + ANSWER) + 1
    assert not any("kv_transfer_params" in event for event in second.events)


def test_cache_loses_a_conversation_whose_booking_is_taken_and_counts_it(
    forge: Forge, small: Small, tmp_path: Path
) -> None:
    with door_over(
        forge,
        tmp_path / "door.log",
        decoders=[small.name],
        options=small.options(),
        tail_waits=True,
        low_watermark=1,
    ) as door:
        prompt = token_ids(531, 1100)
        first = door.turn(completion(prompt), "idle")
        newcomer = token_ids(532, 1100)
        assert door.turn(completion(newcomer), "newcomer").token_ids == alone(forge, newcomer)
        assert door.counter("conserve_evictions_total") == 1, "the booking was taken"
        prompt = [*prompt, *first.token_ids, *token_ids(533, 20)]
        second = door.turn(completion(prompt), "idle")
        assert second.token_ids == alone(forge, prompt)
        counters = door.fleet()["counters"]
        assert (counters["relocated"], counters["handoffs"]) == (1, 3), "prefilled and handed over again"
        door.assert_balanced()


def test_pinned_conversation_loses_nothing_and_newcomers_wait(
    forge: Forge, pinning: Small, door: Door
) -> None:
    prompt = token_ids(511, 700)
    first = door.turn(completion(prompt), "idle")
    # A later turn is kept as well, though nobody handed its KV over.
    prompt = [*prompt, *first.token_ids, *token_ids(512, 60)]
    second = door.turn(completion(prompt), "idle")
    assert second.token_ids == alone(forge, prompt)
    assert [turn.body["kv_transfer_params"] for turn in (first, second)] == [None, None]
    held = blocks(len(prompt) + ANSWER)
    # The last block of turn 1 was not full: it is kept for turn 1, and turn 2 has another.
    assert pinning.usage_blocks() == held + 1
    row = door.row("pin")
    assert (row["booked_blocks"], row["retained_blocks"]) == (held + 1, 1)

    with ThreadPoolExecutor(2) as pool:
        newcomer = token_ids(513, 1000)
        waits = pool.submit(door.turn, completion(newcomer), "newcomer")
        door.await_counter("conserve_turns_queued_total", 1)
        before = pinning.computed()
        prompt = [*prompt, *second.token_ids, *token_ids(514, 20)]
        third = door.turn(completion(prompt), "idle")
        assert third.token_ids == alone(forge, prompt)
        # What is new, and of what was there only the block that was not full.
        found = (len(prompt) - 20 - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert pinning.computed() - before == len(prompt) - found
        assert door.counter(RECOMPUTED) == 0

        assert door.worker.send("DELETE", "/v1/conversations/idle")[0] in (200, 204)
        row, kept = door.row("pin"), pinning.usage_blocks()
        assert row["booked_blocks"] == row["retained_blocks"] == kept, "closed, and not free yet"
        # Who asks the engine for more than is left waits as well: nothing can be taken from what it keeps.
        intruder = pool.submit(pinning.intrude, 515, (KV_BLOCKS - kept + 4) * BLOCK_SIZE)
        forge["pin"].await_metric("vllm:num_requests_waiting_by_reason{capacity}", 1)
        assert not waits.done()
        assert door.counter(EVICTED) == 0
        intruder.result()
        assert waits.result().token_ids == alone(forge, newcomer), "let in when its time was up"
    assert door.counter("conserve_worker_kv_event_batches_missed_total{pin}") == 0
    door.assert_balanced()
