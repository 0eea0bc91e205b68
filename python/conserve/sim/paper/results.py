"""From finished cells to numbers with intervals: what every experiment does with its seeds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conserve.sim.stats import Interval, mean_interval, paired_change

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .cells import Cell, Store, Values

__all__ = ["Json", "Sample", "interval_of", "plain", "sample", "strict_mean"]

Json = dict[str, Any]
"""A part of the results file."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The same run under several seeds, in the order of the seeds."""

    runs: tuple[Values, ...]

    def all(self, name: str) -> list[float]:
        """The values of every seed."""
        return [run[name] for run in self.runs]

    def mean(self, name: str) -> Interval:
        """Their mean; NaN as soon as one seed has no such number."""
        return strict_mean(self.all(name))

    def change(self, base: Sample, name: str) -> Interval:
        """Change against `base` in percent, seed by seed."""
        ours, theirs = self.all(name), base.all(name)
        if any(math.isnan(value) for value in (*ours, *theirs)):
            return Interval(math.nan, -math.inf, math.inf, 0)
        return paired_change(ours, theirs)

    @property
    def unstable(self) -> int:
        """Seeds whose backlog grew while conversations arrived, or that did not end."""
        return sum(1 for run in self.runs if run["unstable"])


def strict_mean(values: Sequence[float]) -> Interval:
    """Their mean; NaN as soon as one is."""
    if any(math.isnan(value) for value in values):
        return Interval(math.nan, -math.inf, math.inf, 0)
    return mean_interval(values)


def sample(store: Store, cell: Callable[[int], Cell], seeds: int) -> Sample:
    """The stored values of `cell(seed)` for seeds 1 to `seeds`.

    Raises:
        KeyError: one was not run.
    """
    runs: list[Values] = []
    for seed in range(1, seeds + 1):
        values = store.get(cell(seed))
        if values is None:
            raise KeyError(f"not run: {cell(seed)}")
        runs.append(values)
    return Sample(tuple(runs))


def plain(interval: Interval) -> Json:
    """As JSON, which has neither NaN nor infinity."""
    return {
        name: value if isinstance(value, int) or math.isfinite(value) else None
        for name, value in asdict(interval).items()
    }


def interval_of(told: Json) -> Interval:
    """Back from JSON."""

    def number(name: str, otherwise: float) -> float:
        value = told[name]
        return otherwise if value is None else float(value)

    low, high = number("low", -math.inf), number("high", math.inf)
    return Interval(number("mean", math.nan), low, high, int(told["count"]))
