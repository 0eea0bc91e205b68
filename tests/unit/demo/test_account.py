"""What counts as computed twice, what the check says, and what the JSON holds."""

from __future__ import annotations

import hashlib

import pytest

from conserve.demo.account import Recomputation
from conserve.demo.check import broken_promises, different_texts, first_difference
from conserve.demo.report import ConversationReport, Report
from conserve.demo.scrape import Samples
from tests.unit.demo.samples import COMPUTED, account, answer, conversation, fleet


def test_first_turn_pulled_whole_recomputes_its_last_token_only() -> None:
    # 64 = 4 blocks: the last token is run on the decoder, and is no whole block.
    assert account(answer(range(64), [1], cached=63), None) == Recomputation(
        63, 0, recomputed=0, partial_block=1
    )


def test_first_turn_that_the_decoder_computed_itself_counts_in_full() -> None:
    # 63 reusable tokens are 3 whole blocks = 48; the other 16 are the last block.
    assert account(answer(range(64), [1], cached=0), None) == Recomputation(
        0, 0, recomputed=48, partial_block=16
    )


def test_later_turn_finds_all_but_the_partial_block() -> None:
    first = answer(range(100), range(100, 120), cached=99)
    # Computed before: 119 of 120, the last answered token was never run. 7 whole blocks = 112 are resident.
    second = answer(range(150), [7], cached=112)
    assert account(second, first) == Recomputation(112, new=31, recomputed=0, partial_block=7)


def test_later_turn_on_a_cold_decoder_recomputes_the_whole_blocks() -> None:
    first = answer(range(100), range(100, 120), cached=99)
    assert account(answer(range(150), [7], cached=0), first) == Recomputation(
        0, 31, recomputed=112, partial_block=7
    )


def test_text_that_reads_back_as_other_tokens_is_new_from_there_on() -> None:
    first = answer(range(100), range(100, 120), cached=99)
    prompt = [*range(105), 999, *range(106, 150)]
    # 105 tokens are common: 6 whole blocks = 96.
    assert account(answer(prompt, [7], cached=96), first) == Recomputation(
        96, 45, recomputed=0, partial_block=9
    )


def test_answer_without_token_ids_cannot_be_accounted_for() -> None:
    first = answer(range(100), range(100, 120), cached=99)
    with pytest.raises(ValueError, match="no token ids"):
        account(answer([], [], cached=0), first)


def test_conversation_that_keeps_every_promise_has_no_problem() -> None:
    assert list(broken_promises([conversation(1)], fleet(COMPUTED))) == []


@pytest.mark.parametrize(
    ("case", "computed", "problem"),
    [
        (conversation(1, handoffs=2), COMPUTED, "conversation task-1 was handed over 2 times, not once"),
        (conversation(2, relocations=1), COMPUTED, "conversation task-2 was relocated once: d0"),
        (conversation(3, decoders=("d0", "d1")), COMPUTED, "conversation task-3 ran on 2 decoders: d0, d1"),
        (
            conversation(4, cached=0),
            151,
            "conversation task-4: 112 tokens in whole blocks were computed again",
        ),
        (conversation(5), 40, "the decoders computed 39 prompt tokens, their metrics say 40"),
    ],
)
def test_each_broken_promise_is_named(case: ConversationReport, computed: int, problem: str) -> None:
    problems = list(broken_promises([case], fleet(computed)))
    assert len(problems) == 1
    assert problem in problems[0]


def test_books_that_do_not_balance_are_named() -> None:
    problems = list(
        broken_promises([conversation(1)], fleet(COMPUTED, booked=11, check="d0: 11 booked, 10 held"))
    )
    assert problems == [
        "the router's check of its own books says: d0: 11 booked, 10 held",
        "the router has booked 11 blocks on its workers, its conversations hold 10",
    ]


def test_first_differing_character_is_named() -> None:
    cases = [conversation(1), conversation(2)]
    problems = list(different_texts(cases, {"task-1": ["one", "two"], "task-2": ["one", "twofold"]}))
    assert problems == [
        "conversation task-2, turn 2: character 4 differs: routed has ended, single engine 'fold'"
    ]
    assert first_difference("same", "same") == 4


def test_json_has_the_promised_keys_and_sums() -> None:
    report = Report(model="random", conversations=(conversation(1),), fleet=fleet(COMPUTED), elapsed_s=2.0)
    data = report.as_json()
    one = data["conversations"][0]
    assert [one[key] for key in ("id", "turns", "decoder", "handoffs", "relocations", "ttfet_s")] == [
        *("task-1", 2, "d0", 1, 0, 0.5)
    ]
    assert one["prompt_tokens"] == 250
    assert one["recomputed_tokens"] == 0
    assert one["partial_block_tokens"] == 8, "the last token of turn 1, and 119 - 112 of turn 2"
    assert one["new_tokens"] == 131
    assert one["text_sha256"] == hashlib.sha256(b"one\0two\0").hexdigest()
    assert data["fleet"]["placements"] == {"d0": 1}
    assert data["fleet"]["workers"]["p0"]["prompt_tokens_by_source"]["local_compute"] == 100


def test_prometheus_text_is_summed_by_name_and_labels() -> None:
    text = (
        "# HELP a:b_total words\n# TYPE a:b_total counter\n"
        'a:b_total{source="x",engine="0"} 3\na:b_total{source="y"} 4.5\nplain 7\n\nbroken line {\n'
    )
    samples = Samples.parse(text)
    assert samples.total("a:b_total") == 7.5
    assert samples.total("a:b_total", source="x") == 3
    assert samples.total("plain") == 7
    assert samples.total("absent") == 0
