"""Statistics of repeated runs: percentiles, paired differences with intervals, and whether a run was stable at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Interval", "convexity", "is_stable", "mean_interval", "paired_change", "percentile", "t_quantile"]

_GROWING: Final = 0.1
"""A backlog that keeps more than this share of the arrivals is growing."""
_CHANCE: Final = 2.0
"""Growth below this many standard deviations of a Poisson count may be chance."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its two-sided 95 % confidence interval (Student's t); infinite with fewer than two seeds."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """The sign of the mean is not in doubt."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` percent lie, interpolated between neighbours; NaN if there is none."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(np.percentile(known, share)) if known.size else math.nan


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent repeats with its interval."""
    known = [value for value in values if not math.isnan(value)]
    count = len(known)
    if count == 0:
        return Interval(math.nan, -math.inf, math.inf, 0)
    mean = math.fsum(known) / count
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (count - 1))
    half = t_quantile(count - 1) * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def paired_change(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Change of ours against theirs in percent, seed by seed, with the interval of its mean.

    Raises:
        ValueError: the two have different numbers of seeds.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} seeds of ours against {len(theirs)} of theirs cannot be paired")
    return mean_interval([100 * (own / other - 1) for own, other in zip(ours, theirs, strict=True) if other])


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with `freedom` degrees of freedom (Cornish-Fisher expansion; exact for 1 and 2).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5; off by less than 0.5 % from 3 on.
    """
    if freedom < 1:
        raise ValueError("no degrees of freedom")
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 2 * 0.475 * math.sqrt(2 / (1 - 4 * 0.475**2))
    z = 1.959963984540054
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))


def convexity(x: Sequence[float], y: Sequence[float]) -> tuple[float, Interval]:
    """How far `y` is from a straight line in `x`: R² of the line, and the quadratic coefficient with its interval.

    Raises:
        ValueError: fewer than four points, or `x` and `y` differ in length.
    """
    if len(x) != len(y) or len(x) < 4:
        raise ValueError("at least four points are needed, as many x as y")
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    line = np.polynomial.polynomial.polyfit(xs, ys, 1)
    rest = ys - np.polynomial.polynomial.polyval(xs, line)
    spread = float(((ys - ys.mean()) ** 2).sum())
    fit = 1.0 - float((rest**2).sum()) / spread if spread else 1.0
    design = np.vander(xs, 3, increasing=True)
    weights, *_ = np.linalg.lstsq(design, ys, rcond=None)
    error = ys - design @ weights
    freedom = len(x) - 3
    variance = float((error**2).sum()) / freedom * np.linalg.inv(design.T @ design)[2, 2]
    half = t_quantile(freedom) * math.sqrt(max(0.0, float(variance)))
    bend = float(weights[2])
    return fit, Interval(bend, bend - half, bend + half, len(x))


def is_stable(arrivals_s: Sequence[float], done_s: Sequence[float]) -> bool:
    """Whether the work in the system stopped growing before the arrivals did.

    The backlog (arrived and not done) is fitted by a line over the second half of the arrivals. Unstable: it grows by more
    than a tenth of the conversations that arrive meanwhile, and by more than chance would make it. NaN in `done_s`: never
    done, which is never stable. A trace of sessions longer than half the run looks unstable until the run is longer.
    """
    came = np.sort(np.asarray(arrivals_s, dtype=np.float64))
    left = np.asarray(done_s, dtype=np.float64)
    if np.isnan(left).any():
        return False
    if came.size < 8 or came[-1] <= came[0]:
        return True
    left = np.sort(left)
    half = (came[-1] - came[0]) / 2
    grid = np.linspace(came[0] + half, came[-1], 64)
    backlog = np.searchsorted(came, grid, side="right") - np.searchsorted(left, grid, side="right")
    growth = float(np.polynomial.polynomial.polyfit(grid, backlog, 1)[1]) * half
    meanwhile = float(np.count_nonzero(came >= came[0] + half))
    return bool(growth <= max(_GROWING * meanwhile, _CHANCE * math.sqrt(meanwhile)))
