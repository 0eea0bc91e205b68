"""Real engines that die: every answer is right or an error, and the router's books balance afterwards."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vllm.door import Door, Streamed, Turn
from tests.vllm.servers import Forge, alone, completion, token_ids

pytestmark = pytest.mark.usefixtures("mended")
PREFILLED = "vllm:request_success_total{length}"
STREAMS = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def ask(door: Door, prompt: list[int], conversation: str, *, streams: bool) -> Turn | Streamed:
    """One turn, in either form."""
    body = completion(prompt)
    return door.stream(body, conversation) if streams else door.turn(body, conversation)


def test_decoder_killed_in_mid_stream_ends_the_stream_with_an_error_and_the_next_turn_moves(
    forge: Forge, door: Door
) -> None:
    prompt = token_ids(21, 300)
    with door.open(completion(prompt, max_tokens=3000, stream=True), "task-21") as response:
        assert response.status == 200
        killed = response.headers["x-conserve-decoder"]
        response.readline()
        forge.kill(killed)
        rest = response.read().decode()
    events = [line.removeprefix("data: ") for line in rest.splitlines() if line.startswith("data: ")]
    errors = [event for event in events if event != "[DONE]" and "error" in json.loads(event)]
    assert len(errors) == 1, "the client is told; the stream is not just cut"
    prompt += token_ids(22, 40)
    turn = door.turn(completion(prompt), "task-21")
    assert turn.token_ids == alone(forge, prompt), "computed afresh, the same text"
    assert turn.decoder != killed
    assert turn.headers["x-conserve-route"] == "relocated"
    door.until({"p0", "d0", "d1"} - {killed})
    door.assert_balanced()


def test_idle_decoder_killed_moves_its_conversation_at_the_next_turn(forge: Forge, door: Door) -> None:
    prompt = token_ids(31, 300)
    first = door.turn(completion(prompt), "task-31")
    forge.kill(first.decoder)
    prompt = [*prompt, *first.token_ids, *token_ids(32, 40)]
    second = door.turn(completion(prompt), "task-31")
    assert second.token_ids == alone(forge, prompt)
    assert second.decoder != first.decoder
    forge.restart(first.decoder)
    door.until({"p0", "d0", "d1"})
    prompt = [*prompt, *second.token_ids, *token_ids(33, 40)]
    third = door.turn(completion(prompt), "task-31")
    assert third.token_ids == alone(forge, prompt)
    assert third.decoder == second.decoder, (
        "the old decoder is back as a new worker; the pin does not go back"
    )
    door.assert_balanced()


def test_prefiller_killed_before_a_first_turn_is_done_without(forge: Forge, door: Door) -> None:
    pinned = token_ids(41, 300)
    first = door.turn(completion(pinned), "task-41")
    forge.kill("p0")
    prompt = token_ids(42, 300)
    newcomer = door.turn(completion(prompt), "task-42")
    assert newcomer.token_ids == alone(forge, prompt)
    assert "x-conserve-prefiller" not in newcomer.headers, "prefilled on its own decoder"
    pinned = [*pinned, *first.token_ids, *token_ids(43, 40)]
    second = door.turn(completion(pinned), "task-41")
    assert second.token_ids == alone(forge, pinned)
    assert second.decoder == first.decoder, "a pinned conversation needs no prefiller"
    forge.restart("p0")
    door.until({"p0", "d0", "d1"})
    prompt = token_ids(44, 300)
    after = door.turn(completion(prompt), "task-44")
    assert after.token_ids == alone(forge, prompt)
    assert after.headers["x-conserve-prefiller"] == "p0", (
        "the new prefiller is used, by decoders that knew the old one"
    )
    door.assert_balanced()


@STREAMS
def test_prefiller_killed_during_a_prefill_is_done_without(
    forge: Forge, door: Door, *, streams: bool
) -> None:
    prompt = token_ids(51, 300)
    with ThreadPoolExecutor(1) as pool, forge.stopped("p0"):
        turn = pool.submit(ask, door, prompt, "task-51", streams=streams)
        door.await_in_flight(1)
        forge.kill("p0")
        assert turn.result().token_ids == alone(forge, prompt)
    assert "x-conserve-prefiller" not in turn.result().headers
    assert door.counter("conserve_orphaned_prefills_total") == 0, "nothing was computed there"
    door.assert_balanced()


@STREAMS
def test_prefiller_killed_after_a_prefill_costs_a_computation_that_the_client_does_not_see(
    forge: Forge, door: Door, *, streams: bool
) -> None:
    prompt = token_ids(61, 300)
    done = forge["p0"].metrics()[PREFILLED]
    with ThreadPoolExecutor(1) as pool, forge.stopped("d0", "d1"):
        turn = pool.submit(ask, door, prompt, "task-61", streams=streams)
        forge["p0"].await_metric(PREFILLED, done + 1)
        forge.kill("p0")
        for name in ("d0", "d1"):
            forge.resume(name)
        assert turn.result().token_ids == alone(forge, prompt)
    assert door.counter("conserve_dispatch_total{handoffs_recomputed}") == 1
    assert door.counter("conserve_orphaned_prefills_total") == 1
    door.assert_balanced()


@STREAMS
def test_decoder_killed_before_its_first_token_is_replaced_unseen(
    forge: Forge, door: Door, *, streams: bool
) -> None:
    prompt = token_ids(71, 300)
    done = forge["p0"].metrics()[PREFILLED]
    with ThreadPoolExecutor(1) as pool, forge.stopped("d0", "d1"):
        turn = pool.submit(ask, door, prompt, "task-71", streams=streams)
        forge["p0"].await_metric(PREFILLED, done + 1)
        placed = {row["name"] for row in door.fleet()["workers"] if row["running"]}
        (asked,) = placed - {"p0"}
        (other,) = {"d0", "d1"} - placed
        forge.resume(other)
        forge.kill(asked)
        assert turn.result().token_ids == alone(forge, prompt)
    assert turn.result().headers["x-conserve-decoder"] == other
    assert door.counter("conserve_orphaned_prefills_total") >= 1, "the dead decoder pulls nothing"
    door.assert_balanced()


def test_decoder_that_rejects_after_the_prefill_leaves_an_orphan_that_is_counted(
    forge: Forge, door: Door
) -> None:
    # The prefill asks for one token, so only the decoder meets the contradiction.
    turn = door.turn(completion(token_ids(81, 300), min_tokens=50), "task-81")
    assert turn.status == 400
    assert "min_tokens" in turn.body["error"]["message"]
    assert turn.headers["x-conserve-prefiller"] == "p0"
    assert door.counter("conserve_orphaned_prefills_total") == 1
    assert sum(row["booked_blocks"] for row in door.fleet()["workers"]) == 0
    door.assert_balanced()
    prompt = token_ids(82, 300)
    assert door.turn(completion(prompt), "task-81").token_ids == alone(forge, prompt)


@pytest.mark.parametrize("victims", [["d0"], ["p0", "d1"]], ids=["a decoder", "prefiller and decoder"])
def test_restart_under_load_leaves_every_answer_right_or_an_error(
    forge: Forge, door: Door, victims: list[str]
) -> None:
    def converse(number: int) -> list[tuple[list[int], Turn]]:
        prompt, told = token_ids(2000 + number, 150 + 20 * number), []
        for turn_number in range(6):
            turn = door.turn(completion(prompt, max_tokens=12), f"task-{victims}-{number}")
            told.append((prompt, turn))
            if turn.status == 200:
                prompt = [*prompt, *turn.token_ids]
            prompt = [*prompt, *token_ids(number * 50 + turn_number, 30)]
        return told

    with ThreadPoolExecutor(6) as pool:
        conversations = [pool.submit(converse, number) for number in range(6)]
        door.await_counter("conserve_turns_finished_total", 6)
        for name in victims:
            forge.kill(name)
        forge.restart(*victims)
        told = [each for conversation in conversations for each in conversation.result()]
    door.until({"p0", "d0", "d1"})
    right = [turn for _, turn in told if turn.status == 200]
    assert len(told) == 36
    assert {turn.status for _, turn in told} <= {200, 502, 503}, [turn.body for _, turn in told]
    assert len(right) >= 18, "most of them are answered"
    for prompt, turn in told:
        if turn.status == 200:
            assert turn.token_ids == alone(forge, prompt, max_tokens=12)
    door.assert_balanced()
