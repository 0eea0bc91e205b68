"""The yardstick for the paper's claims: each verdict can come out, and none comes out by width alone."""

from __future__ import annotations

import math

import pytest

from conserve.sim.paper.claims import CLAIMS, Claim, Scale, Verdict, judge
from conserve.sim.stats import Interval


def claim(scale: Scale, paper: float) -> Claim:
    return Claim("x", "x", scale, paper, "s")


@pytest.mark.parametrize(
    ("scale", "paper", "ours", "verdict"),
    [
        # A value of 4.0: 10 % is 0.4, 30 % is 1.2.
        (Scale.VALUE, 4.0, (4.3, 4.25, 4.35), Verdict.REPRODUCED),
        (Scale.VALUE, 4.0, (4.5, 4.45, 4.55), Verdict.PARTLY),
        (Scale.VALUE, 4.0, (5.3, 5.25, 5.35), Verdict.NOT),
        (Scale.VALUE, 4.0, (4.8, 3.9, 5.7), Verdict.REPRODUCED),
        (Scale.VALUE, 4.0, (9.0, 1.0, 17.0), Verdict.NOT),
        (Scale.SHARE, 0.0, (3.0, 2.9, 3.1), Verdict.REPRODUCED),
        (Scale.SHARE, 0.0, (9.0, 8.0, 10.0), Verdict.PARTLY),
        (Scale.SHARE, 0.0, (30.0, 20.0, 40.0), Verdict.NOT),
        (Scale.CHANGE, -51.0, (-49.0, -50.0, -48.0), Verdict.REPRODUCED),
        (Scale.CHANGE, -51.0, (-26.0, -30.0, -22.0), Verdict.PARTLY),
        (Scale.CHANGE, -51.0, (-24.0, -28.0, -20.0), Verdict.NOT),
        (Scale.CHANGE, -51.0, (-40.0, -90.0, 10.0), Verdict.NOT),
        (Scale.CHANGE, -51.0, (51.0, 50.0, 52.0), Verdict.NOT),
        (Scale.VALUE, 4.0, (math.nan, -math.inf, math.inf), Verdict.UNSTABLE),
    ],
)
def test_a_verdict_follows_from_the_numbers(
    scale: Scale, paper: float, ours: tuple[float, float, float], verdict: Verdict
) -> None:
    assert judge(claim(scale, paper), Interval(*ours, count=10)) is verdict


def test_one_seed_cannot_cover_a_claim() -> None:
    assert judge(claim(Scale.VALUE, 4.0), Interval(9.0, -math.inf, math.inf, 1)) is Verdict.NOT


def test_every_number_of_the_specification_has_its_row() -> None:
    assert CLAIMS["headline/ttfet"].paper == -51.08
    assert CLAIMS["ttfet-p95/ampd-paper/1.634"].paper == 8.4
    assert CLAIMS["tokens-per-j-capped/strict"].paper == 76.1
    assert CLAIMS["wrong/missed/0.50"].paper == 53
    assert CLAIMS["e2e-p95/disaggregated"].paper == 65
    # 4 of the abstract, 5 of the run, 3 systems x 6 rates and both ends of the fourth's, 3 systems below saturation and
    # 2 numbers of collocated at 1.5/s, 9 measures x 4 systems, 3 measures x 11 error rates.
    assert len(CLAIMS) == 4 + 5 + 18 + 2 + 3 + 2 + 36 + 33
