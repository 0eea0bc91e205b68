"""Where the difference of two systems' p95 TTFET comes from: the time of the slowest conversations, part by part.

A percentile has no parts that add up, a mean has. So the table is of the conversations at or above the 95th percentile of their
run: the parts of their mean, and the difference of each, add up to the mean and its difference.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from conserve.sim.split import PARTS

from .results import Json, Sample, plain, strict_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cells import Values

__all__ = ["WHOLE", "causes"]

WHOLE: Final = "all"
"""What the row of the sum is called."""


def causes(ours: Sample, base: Sample) -> list[Json]:
    """One row for each part that any of the two spends time on, then their sum; multiples of the conversation alone."""
    rows = [_row(part, ours, base, [part]) for part in PARTS]
    spent = [row for row in rows if any(row[name]["mean"] != 0 for name in ("ours", "base"))]
    return [*spent, _row(WHOLE, ours, base, list(PARTS))]


def _row(name: str, ours: Sample, base: Sample, parts: list[str]) -> Json:
    def each(of: str) -> Callable[[Values], float]:
        return lambda run: math.fsum(run[f"ttfet_{of}_{part}_x"] for part in parts)

    tail, mean = each("tail"), each("mean")
    differences = [tail(own) - tail(other) for own, other in zip(ours.runs, base.runs, strict=True)]
    return {
        "part": name,
        "ours": plain(strict_mean([tail(run) for run in ours.runs])),
        "base": plain(strict_mean([tail(run) for run in base.runs])),
        "difference": plain(strict_mean(differences)),
        "ours_mean": plain(strict_mean([mean(run) for run in ours.runs])),
        "base_mean": plain(strict_mean([mean(run) for run in base.runs])),
    }
