"""What the paper says, number by number, and how a number of ours is judged against it.

The paper: "Observation, Not Prediction: Conversation-Level Disaggregated Scheduling for Agentic Serving"
(arXiv 2606.01839). Numbers of the abstract are exact; the others were read off figures by eye and are good to about 5 %.
Times are multiples of the conversation alone, as in its figures ("x"): a miss is a multiple above 5.
The rules of `judge` are fixed here, apart from any run, so that no result can choose its own yardstick.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from conserve.sim.stats import Interval

__all__ = ["CLAIMS", "ERROR_RATES", "RATES", "Claim", "Scale", "Verdict", "judge", "judge_line"]

RATES: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 1.634)
"""Conversations per second that the paper's prefiller served; 1.634 is saturation."""
ERROR_RATES: Final = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50)
"""Shares of later turns declared mispredicted."""

SYSTEMS: Final = ("strict", "ampd-paper", "collocated", "disaggregated")
READ_OFF: Final = "figure, read by eye"
SETUP: Final = "setup and logs"

_NEAR: Final = 0.10
_SAME_SHAPE: Final = 0.30
_NEAR_POINTS: Final = 3.0
_SAME_SHAPE_POINTS: Final = 10.0
_STRAIGHT_R2: Final = 0.9


class Scale(StrEnum):
    """What a claim's number is: that decides how far off is near."""

    VALUE = "value"
    """A quantity: near within 10 % of the paper's, the same shape within 30 %."""
    SHARE = "share"
    """Percent of something: near within 3 points, the same shape within 10."""
    CHANGE = "change"
    """A difference of two systems in percent: near within 3 points, the same shape if the sign is beyond doubt the
    paper's and the size at least half of it."""


class Verdict(StrEnum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not"
    UNSTABLE = "unstable"
    """Ours has no number that would mean anything: the backlog grew until the arrivals ended."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One number of the paper."""

    id: str
    what: str
    scale: Scale
    paper: float
    unit: str
    source: str = READ_OFF


def judge(claim: Claim, ours: Interval) -> Verdict:
    """Whether `ours`, a mean over seeds with its 95 % interval, reproduces the claim.

    Reproduced: the paper's number lies in the interval, and the interval is no wider than what counts as the same shape;
    or the mean is near it. Partly: the mean has the same shape.
    """
    if math.isnan(ours.mean):
        return Verdict.UNSTABLE
    points = claim.scale is not Scale.VALUE
    near = _NEAR_POINTS if points else _NEAR * abs(claim.paper)
    shape = _SAME_SHAPE_POINTS if points else _SAME_SHAPE * abs(claim.paper)
    off = abs(ours.mean - claim.paper)
    covered = ours.low <= claim.paper <= ours.high and ours.high - ours.low <= 2 * shape
    if off <= near or covered:
        return Verdict.REPRODUCED
    if claim.scale is Scale.CHANGE:
        same_sign = ours.excludes_zero and math.copysign(1, ours.mean) == math.copysign(1, claim.paper)
        return Verdict.PARTLY if same_sign and abs(ours.mean) >= abs(claim.paper) / 2 else Verdict.NOT
    return Verdict.PARTLY if off <= shape else Verdict.NOT


def judge_line(r2: float, bend: Interval) -> Verdict:
    """Whether points lie on a line: nearly all of their spread does, and their bend is not beyond doubt. One of both is partly."""
    near, straight = r2 >= _STRAIGHT_R2, not bend.excludes_zero
    if near and straight:
        return Verdict.REPRODUCED
    return Verdict.PARTLY if near or straight else Verdict.NOT


def _by_rate() -> list[Claim]:
    ttfet_p95_x = {
        "strict": (1.2, 1.5, 2.2, 3.1, 3.5, 4.1),
        "ampd-paper": (1.2, 1.5, 2.3, 3.3, 4.0, 8.4),
        "collocated": (1.2, 1.4, 2.0, 3.1, 4.3, 5.6),
    }
    return [
        Claim(f"ttfet-p95/{system}/{rate}", f"p95 TTFET of {system} at {rate}/s", Scale.VALUE, value, "x")
        for system, values in ttfet_p95_x.items()
        for rate, value in zip(RATES, values, strict=True)
    ] + [
        # The ends of a curve whose other points are not legible.
        Claim(
            f"ttfet-p95/disaggregated/{rate}",
            f"p95 TTFET of disaggregated at {rate}/s",
            Scale.VALUE,
            value,
            "x",
        )
        for rate, value in ((RATES[0], 55.0), (RATES[-1], 105.0))
    ]


def _below_saturation() -> list[Claim]:
    return [
        *(
            Claim(
                f"missed-below/{system}",
                f"conversations above 5x their TTFET, last-turn TBT or time alone, worst rate below 1.5/s, {system}",
                Scale.SHARE,
                0.0,
                "%",
            )
            for system in SYSTEMS
            if system != "disaggregated"
        ),
        Claim(
            "tbt-p95/collocated/1.5",
            "p95 last-turn TBT against one conversation alone, collocated at 1.5/s",
            Scale.VALUE,
            5.4,
            "x",
        ),
        Claim(
            "tbt-missed/collocated/1.5",
            "conversations above 5x their last-turn TBT alone, collocated at 1.5/s",
            Scale.SHARE,
            10.0,
            "%",
        ),
    ]


def _of_the_run() -> list[Claim]:
    """The run at saturation itself, apart from what any policy makes of it."""
    return [
        Claim(
            "run/first-share",
            "prompt tokens that first turns bring, of all",
            Scale.SHARE,
            98.0,
            "%",
            SETUP,
        ),
        Claim(
            "run/served",
            "conversations that the prefiller serves, offered 2.0/s",
            Scale.VALUE,
            1.634,
            "/s",
            SETUP,
        ),
        Claim(
            "run/last-prompt",
            "the last first prompt is computed after",
            Scale.VALUE,
            167.0,
            "s",
        ),
        Claim(
            "run/in-flight",
            "most conversations in flight, strict at 1.634/s",
            Scale.VALUE,
            51.5,
            "",
        ),
        Claim(
            "run/span",
            "the last conversation ends after, strict at 1.634/s",
            Scale.VALUE,
            370.0,
            "s",
        ),
    ]


def _at_saturation() -> list[Claim]:
    rows: list[tuple[str, str, Scale, str, tuple[float, ...]]] = [
        ("ttfet-gmean", "geometric mean TTFET", Scale.VALUE, "x", (2.53, 3.13, 2.95, 19.0)),
        (
            "tbt-p95",
            "p95 last-turn TBT against one conversation alone",
            Scale.VALUE,
            "x",
            (4.45, 4.35, 7.6, 2.05),
        ),
        ("ttfet-missed", "conversations above 5x their TTFET alone", Scale.SHARE, "%", (0, 13, 17, 100)),
        ("tbt-missed", "conversations above 5x their last-turn TBT alone", Scale.SHARE, "%", (0, 0, 25, 0)),
        (
            "e2e-p95",
            "p95 time to the end (AMPD: between 6.8 and 7.5)",
            Scale.VALUE,
            "x",
            (4.2, 7.15, 5.6, 65.0),
        ),
        ("e2e-missed", "conversations above 5x their time alone", Scale.SHARE, "%", (0, 10, 19, 98)),
        (
            "tokens-per-j",
            "tokens per joule, caps 300/300 W",
            Scale.VALUE,
            "tokens/J",
            (62.0, 57.7, 61.2, 30.3),
        ),
        (
            "tokens-per-j-capped",
            "tokens per joule, caps 300/200 W",
            Scale.VALUE,
            "tokens/J",
            (76.1, 71.9, 70.8, 30.9),
        ),
        ("ttfet-p95-capped", "p95 TTFET, caps 300/200 W", Scale.VALUE, "x", (4.15, 8.3, 6.2, 85.0)),
    ]
    return [
        Claim(f"{key}/{system}", f"{what}, {system} at 1.634/s", scale, value, unit)
        for key, what, scale, unit, values in rows
        for system, value in zip(SYSTEMS, values, strict=True)
    ]


def _by_error_rate() -> list[Claim]:
    p95_x = (4.1, 6.1, 8.3, 8.3, 9.2, 11.1, 11.1, 12.8, 12.9, 13.7, 13.7)
    missed = (0, 8, 13, 22, 25, 35, 39, 42, 45, 49, 53)
    per_joule = (64.7, 62.3, 60.9, 62.6, 61.0, 61.0, 60.5, 58.9, 58.7, 58.5, 57.9)
    return [
        claim
        for error, multiple, share, tokens in zip(ERROR_RATES, p95_x, missed, per_joule, strict=True)
        for claim in (
            Claim(
                f"wrong/ttfet-p95/{error:.2f}",
                f"p95 TTFET, {error:.0%} mispredicted",
                Scale.VALUE,
                multiple,
                "x",
            ),
            Claim(
                f"wrong/missed/{error:.2f}",
                f"TTFET misses, {error:.0%} mispredicted",
                Scale.SHARE,
                share,
                "%",
            ),
            Claim(
                f"wrong/tokens-per-j/{error:.2f}",
                f"tokens/J, {error:.0%} mispredicted",
                Scale.VALUE,
                tokens,
                "tokens/J",
            ),
        )
    ]


CLAIMS: Final[dict[str, Claim]] = {
    claim.id: claim
    for claim in (
        Claim(
            "headline/ttfet", "p95 TTFET against AMPD at saturation", Scale.CHANGE, -51.08, "%", "abstract"
        ),
        Claim("headline/energy", "tokens/J against AMPD, equal GPUs", Scale.CHANGE, 7.51, "%", "abstract"),
        Claim(
            "headline/capped",
            "tokens/J under 300/200 W against 300/300 W",
            Scale.CHANGE,
            22.75,
            "%",
            "abstract",
        ),
        Claim(
            "headline/no-misses", "TTFET misses of ConServe at all rates", Scale.SHARE, 0.0, "%", "abstract"
        ),
        *_of_the_run(),
        *_by_rate(),
        *_below_saturation(),
        *_at_saturation(),
        *_by_error_rate(),
    )
}
