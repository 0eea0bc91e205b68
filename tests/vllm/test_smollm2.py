"""SmolLM2 behind a router, with text as an agent sends it: each turn resends the history, each answer is that of one instance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.door import Door, Turn, door_over
from tests.vllm.servers import BLOCK_SIZE, SMOLLM2, Forge, start_talkers
from tests.workers.harness import text_of

pytestmark = pytest.mark.skipif(not SMOLLM2, reason="needs SmolLM2 in a folder: make vllm-test")
FETCHED = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"
RESIDENT = "vllm:prompt_tokens_by_source_total{local_cache_hit}"
CHAT = "/v1/chat/completions"
MAX_TOKENS = 12
PREFILLER, DECODERS = "s0", ("s1", "s2")


@pytest.fixture(scope="module")
def talkers(empty_forge: Forge) -> Iterator[Forge]:
    """A prefiller, two decoders, and the instance `talker` that answers alone."""
    start_talkers(
        empty_forge, {PREFILLER: "prefiller", **dict.fromkeys(DECODERS, "decoder"), "talker": "both"}
    )
    yield empty_forge
    for name in (PREFILLER, *DECODERS):
        with suppress(ProcessLookupError):
            empty_forge.kill(name)


@pytest.fixture
def door(talkers: Forge, tmp_path: Path) -> Iterator[Door]:
    with door_over(talkers, tmp_path / "door.log", prefillers=[PREFILLER], decoders=DECODERS) as made:
        yield made


class Talk:
    """One conversation: what was said in it so far."""

    def __init__(self, forge: Forge, door: Door, name: str) -> None:
        self.forge = forge
        self.door = door
        self.name = name
        self.messages: list[dict[str, Any]] = []

    def says(self, text: str) -> Turn:
        """A turn, whose answer must be the one of the instance that answers alone; the history grows by both."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": "demo", "messages": self.messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        turn = self.door.turn(body, self.name, path=CHAT)
        assert turn.status == 200, turn.body
        answer = turn.body["choices"][0]["message"]["content"]
        assert answer == text_of(self.forge["talker"].chat(self.messages, max_tokens=MAX_TOKENS))
        self.messages.append({"role": "assistant", "content": answer})
        return turn

    def streams(self, text: str) -> str:
        """The same as a stream."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": "demo", "messages": self.messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        told = self.door.stream(body, self.name, path=CHAT)
        assert not told.errors
        choices = [choice for event in told.events for choice in event["choices"]]
        answer = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert answer == text_of(self.forge["talker"].chat(self.messages, max_tokens=MAX_TOKENS))
        self.messages.append({"role": "assistant", "content": answer})
        return told.headers["x-conserve-decoder"]


def sources(forge: Forge, name: str) -> list[float]:
    """Prompt tokens fetched, computed and found by a worker so far."""
    samples = forge[name].metrics()
    return [samples[FETCHED], samples[COMPUTED], samples[RESIDENT]]


def test_a_chat_is_handed_over_once_and_later_turns_compute_what_is_new(talkers: Forge, door: Door) -> None:
    talk = Talk(talkers, door, "task-401")
    workers = (PREFILLER, *DECODERS)
    before = {name: sources(talkers, name) for name in workers}
    story = " ".join(f"Boat {place} carries {place * 17 % 90 + 5} stones." for place in range(1, 25))
    first = talk.says(f"Read this. {story} How many boats are there?")
    after = {name: sources(talkers, name) for name in workers}
    length = first.body["usage"]["prompt_tokens"]
    assert length > 8 * BLOCK_SIZE
    moved = {
        name: [now - then for now, then in zip(after[name], before[name], strict=True)] for name in workers
    }
    fetched, computed, found = moved[first.decoder]
    assert (computed, fetched + found) == (0, length), "the decoder computes nothing of the prompt"
    assert fetched >= length - BLOCK_SIZE, "what all chats begin with may be there"
    assert sum(moved[PREFILLER]) == length
    assert first.headers["x-conserve-prefiller"] == PREFILLER
    for number in range(2, 5):
        before[first.decoder] = sources(talkers, first.decoder)
        turn = talk.says(f"And how heavy is boat {number}?")
        fetched, computed, found = (
            now - then
            for now, then in zip(sources(talkers, first.decoder), before[first.decoder], strict=True)
        )
        assert turn.decoder == first.decoder
        assert "x-conserve-prefiller" not in turn.headers
        assert fetched == 0
        assert found >= length // BLOCK_SIZE * BLOCK_SIZE, "every full block of the last prompt is found"
        length = turn.body["usage"]["prompt_tokens"]
        assert found + computed == length
    assert talk.streams("Thank you. And boat 7?") == first.decoder
    counters = door.fleet()["counters"]
    assert (counters["handoffs"], counters["relocated"]) == (1, 0)
    door.assert_balanced()


def test_a_chat_survives_its_decoder_and_then_goes_on_without_a_prefiller(talkers: Forge, door: Door) -> None:
    """Last in this file: nothing is started again."""
    talk = Talk(talkers, door, "task-402")
    first = talk.says("Name three rivers, and tell where each of them ends. " * 6)
    talk.says("Which of them is the longest?")
    talkers.kill(first.decoder)
    moved = talk.says("And the shortest?")
    assert moved.decoder != first.decoder
    assert moved.headers["x-conserve-route"] == "relocated"
    assert moved.headers["x-conserve-prefiller"] == PREFILLER, "the whole history is handed over once more"
    assert door.fleet()["counters"]["handoffs"] == 2
    talkers.kill(PREFILLER)
    last = talk.says("Is there a lake as well?")
    assert last.decoder == moved.decoder, "a pinned conversation needs no prefiller"
    newcomer = Talk(talkers, door, "task-403").says("Name three lakes, and what lives in them. " * 6)
    assert newcomer.decoder == moved.decoder
    assert "x-conserve-prefiller" not in newcomer.headers, "prefilled on its own decoder"
    door.until({moved.decoder})
    door.assert_balanced()
