"""Conversations through the router over real vLLM: the KV moves once, then everything runs where it lies."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vllm.door import Door
from tests.vllm.servers import BLOCK_SIZE, Forge, alone, completion, token_ids

FETCHED = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"
RESIDENT = "vllm:prompt_tokens_by_source_total{local_cache_hit}"
WORKERS = ("p0", "d0", "d1")


def by_source(forge: Forge) -> dict[str, dict[str, float]]:
    """Prompt tokens of each worker so far, by where they came from."""
    return {
        name: {key: forge[name].metrics()[key] for key in (FETCHED, COMPUTED, RESIDENT)} for name in WORKERS
    }


def risen(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """What was fetched, computed and found by each worker meanwhile."""
    return {name: [after[name][key] - before[name][key] for key in after[name]] for name in after}


def test_first_turn_is_handed_over_once_and_later_turns_compute_what_is_new(forge: Forge, door: Door) -> None:
    prompt = token_ids(11, 500)
    before = by_source(forge)
    first = door.turn(completion(prompt), "task-42")
    moved = risen(before, by_source(forge))
    assert first.token_ids == alone(forge, prompt)
    assert moved["p0"] == [0, 500, 0], "the prompt is computed on the prefiller"
    assert moved[first.decoder] == [500, 0, 0], "and fetched by the decoder, which computes none of it"
    assert first.headers["x-conserve-prefiller"] == "p0"
    for number in range(2, 5):
        resident = len(prompt) + len(first.token_ids) - 1 if number == 2 else len(prompt)
        prompt = [*prompt, *first.token_ids, *token_ids(100 + number, 70)]
        before = by_source(forge)
        turn = door.turn(completion(prompt), "task-42")
        moved = risen(before, by_source(forge))
        assert turn.token_ids == alone(forge, prompt), f"turn {number}"
        assert turn.decoder == first.decoder
        assert "x-conserve-prefiller" not in turn.headers
        fetched, computed, found = moved[turn.decoder]
        assert fetched == 0
        assert found >= resident // BLOCK_SIZE * BLOCK_SIZE, "every full block of before is found"
        assert found + computed == len(prompt)
        assert [sum(moved[name]) for name in WORKERS if name != turn.decoder] == [0, 0], (
            "nobody else computes"
        )
        first = turn
    counters = door.fleet()["counters"]
    assert (counters["handoffs"], counters["relocated"]) == (1, 0)
    door.assert_balanced()


@pytest.mark.slow
def test_twelve_conversations_at_once_are_handed_over_once_each(forge: Forge, door: Door) -> None:
    def converse(number: int) -> list[tuple[list[int], list[int], str]]:
        prompt, told = token_ids(1000 + number, 200 + 16 * number), []
        for turn_number in range(5):
            turn = door.turn(completion(prompt, max_tokens=8), f"task-{number}")
            told.append((prompt, turn.token_ids, turn.decoder))
            prompt = [*prompt, *turn.token_ids, *token_ids(number * 10 + turn_number, 40)]
        return told

    before = by_source(forge)
    with ThreadPoolExecutor(12) as pool:
        conversations = list(pool.map(converse, range(12)))
    moved = risen(before, by_source(forge))
    fleet = door.fleet()
    assert fleet["counters"]["handoffs"] == 12
    assert fleet["counters"]["relocated"] == 0
    firsts = sum(len(told[0][0]) for told in conversations)
    assert moved["p0"] == [0, firsts, 0], "each first prompt is computed once, on the prefiller"
    assert moved["d0"][0] + moved["d1"][0] == firsts, "and fetched once"
    for told in conversations:
        assert len({decoder for _prompt, _ids, decoder in told}) == 1, "pinned for life"
    # Beyond what is new, a turn computes at most the partial block of the history before it.
    new = sum(
        len(later[0]) - len(earlier[0])
        for told in conversations
        for earlier, later in itertools.pairwise(told)
    )
    turns = sum(len(told) - 1 for told in conversations)
    assert moved["d0"][1] + moved["d1"][1] <= new + turns * (BLOCK_SIZE - 1)
    for told in conversations:
        prompt, ids, _decoder = told[-1]
        assert ids == alone(forge, prompt, max_tokens=8), "the last answer stands on all others"
    door.assert_balanced()


def test_client_that_leaves_frees_its_request_and_its_booking(forge: Forge, door: Door) -> None:
    body = completion(token_ids(77, 200), max_tokens=3000, stream=True)
    with door.open(body, "task-77") as response:
        assert response.status == 200
        decoder = response.headers["x-conserve-decoder"]
        response.readline()
        assert forge[decoder].metrics()["vllm:num_requests_running"] == 1
    forge[decoder].await_metric("vllm:num_requests_running", 0)
    forge[decoder].await_metric("vllm:kv_cache_usage_perc", 0)
    door.assert_balanced()
