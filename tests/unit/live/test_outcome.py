"""Figures from what clients saw: waits counted from when a turn was due, intervals paired by round, failures never averaged away."""

from __future__ import annotations

import math

import pytest

from conserve.live.client import Answer, Refused
from conserve.live.counters import Counted
from conserve.live.outcome import figures, outcomes
from conserve.live.plan import Script, Step
from conserve.live.predict import _order
from conserve.live.replay import Told
from conserve.live.run import Round

SCRIPT = Script(id="task-0", arrival_s=1.0, steps=(Step(0.0, 0, 100, 4), Step(2.0, 104, 20, 4)), visible=1)


def answer(sent_s: float, first_s: float, gap_s: float) -> Answer:
    made = Answer(sent_s)
    for place in range(4):
        made.take({"choices": [{"token_ids": [place]}]}, first_s + place * gap_s)
    return made


def one(policy: str, number: int, *, wait_s: float, gap_s: float = 0.01, computed: int = 120) -> Round:
    told = Told(SCRIPT, start_s=100.0, done_s=5.0)
    told.answers = [answer(101.0, 101.0 + wait_s, gap_s), answer(104.0, 104.0 + wait_s, gap_s)]
    told.ready_s = [101.0, 104.0]
    return Round(policy, number, number, [told], Counted(computed, 8, 0, math.nan))


def test_figures_of_one_round() -> None:
    seen = figures(one("strict", 0, wait_s=0.5, computed=180))
    assert seen.ttfet_p95_s == pytest.approx(3.5), "from arrival at 101 to 104.5"
    assert seen.ttfet_no_tool_p95_s == pytest.approx(1.5)
    assert seen.ttft_p95_s == pytest.approx(0.5)
    assert seen.tbt_last_p95_s == pytest.approx(0.01)
    assert seen.computed_ratio == pytest.approx(1.5), "180 computed where 120 were due"
    assert math.isnan(seen.tokens_per_j)


def test_tokens_that_come_together_share_their_gap() -> None:
    made = Answer(0.0)
    made.take({"choices": [{"token_ids": [1]}]}, 1.0)
    made.take({"choices": [{"token_ids": [2, 3]}]}, 1.4)
    assert made.first_s == 1.0
    assert made.gaps_s == pytest.approx([0.2, 0.2])


def test_an_error_event_is_a_refusal() -> None:
    with pytest.raises(Refused, match="gone"):
        Answer(0.0).take({"error": {"message": "gone"}}, 1.0)


def test_changes_are_paired_by_round() -> None:
    rounds = [one("strict", number, wait_s=wait) for number, wait in enumerate((0.5, 1.0, 2.0))]
    rounds += [one("collocated", number, wait_s=wait) for number, wait in ((2, 1.0), (0, 0.25), (1, 0.5))]
    base, other = outcomes(rounds, ("strict", "collocated"))
    assert base.ttft_p95_change.mean == 0
    assert other.ttft_p95_change.mean == pytest.approx(-50)
    assert other.ttft_p95_change.low == pytest.approx(-50), "each round has the same change"


def test_a_round_with_a_failure_has_no_percentile() -> None:
    broken = one("strict", 0, wait_s=0.5)
    broken.told[0].failure = "turn 2: 503"
    [seen] = outcomes([broken, one("strict", 1, wait_s=1.0)], ("strict",))
    assert (seen.failed, seen.unstable) == (1, 1)
    assert seen.ttft_p95_s.mean == pytest.approx(1.0)


def test_only_pairs_that_differ_beyond_chance_can_be_right_or_wrong() -> None:
    rounds = [one("strict", number, wait_s=1.0 + 0.01 * number) for number in range(3)]
    rounds += [one("collocated", number, wait_s=0.5 + 0.01 * number) for number in range(3)]
    rounds += [one("ppd", number, wait_s=wait) for number, wait in enumerate((0.5, 1.5, 1.0))]
    policies = ("strict", "collocated", "ppd")

    def order(strict: float, collocated: float) -> object:
        simulated = {"strict": strict, "collocated": collocated, "ppd": 0.1}
        runs = {name: [{"ttft_p95_s": value}] for name, value in simulated.items()}
        return _order("ttft_p95_s", policies, rounds, runs)

    agreed, reversed_, same = order(1.0, 0.5), order(0.5, 1.0), order(1.0, 1.0)
    assert agreed.told_apart == (("collocated", "strict"),)  # type: ignore[attr-defined]
    assert agreed.wrong == ()  # type: ignore[attr-defined]
    assert reversed_.wrong == same.wrong == (("collocated", "strict"),)  # type: ignore[attr-defined]


def test_a_round_with_a_failure_is_in_no_order() -> None:
    rounds = [one("strict", number, wait_s=1.0 + 0.01 * number) for number in range(3)]
    rounds += [one("collocated", number, wait_s=0.5 + 0.01 * number) for number in range(3)]
    broken = one("collocated", 3, wait_s=99.0)
    broken.told[0].failure = "turn 1: 503"
    rounds += [one("strict", 3, wait_s=1.0), broken]
    runs = {"strict": [{"ttft_p95_s": 1.0}], "collocated": [{"ttft_p95_s": 0.5}]}
    told = _order("ttft_p95_s", ("strict", "collocated"), rounds, runs)
    assert told.live == ("collocated", "strict")
    assert told.told_apart == (("collocated", "strict"),)
