"""Real engines that die: every answer is right or an error, and the router's books balance afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.vllm.door import PATH, Door
from tests.vllm.servers import Forge, completion, token_ids


@pytest.fixture(autouse=True)
def mended(forge: Forge, door: Door) -> Iterator[None]:
    """What a test kills is started again for the next one, and joins the router as a new worker."""
    yield
    dead = [name for name in ("p0", "d0", "d1") if not forge.lives(name)]
    if dead:
        forge.restart(*dead)
        door.until({"p0", "d0", "d1"})


def alone(forge: Forge, prompt: list[int]) -> list[int]:
    choice = forge["plain"].post(PATH, completion(prompt)).body["choices"][0]
    ids: list[int] = choice["token_ids"]
    return ids


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
