"""Each conversation by itself on one GPU: the yardstick of thresholds that no policy under test can move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from conserve.sim.run import columns, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from conserve.sim.workload import Conversation

__all__ = ["Alone", "alone"]


@dataclass(frozen=True, slots=True)
class Alone:
    """One entry for each conversation; without tool time."""

    ttfet_s: NDArray[np.float64]
    whole_s: NDArray[np.float64]
    last_gap_s: NDArray[np.float64]
    """Mean time between two tokens of the last turn; NaN if it has one token."""

    def reordered(self, order: NDArray[np.int64]) -> Alone:
        """The same for conversations in another order."""
        return Alone(self.ttfet_s[order], self.whole_s[order], self.last_gap_s[order])


def alone(engine: Mapping[str, object], tasks: Sequence[Conversation]) -> Alone:
    """Runs `tasks` one after the other on one such engine."""
    scenario = {
        "engines": [{**engine, "role": "both"}],
        "policy": {"name": "collocated"},
        "router": {"low_watermark": 1.0},
        "closed_loop": 1,
    }
    result = simulate(scenario, columns(tasks, arrivals_s=[0.0] * len(tasks)), seed=0)
    told, turns = result.conversations(), result.turns()
    if result.diagnosis()["finished"] != len(tasks):
        raise RuntimeError(f"of {len(tasks)} conversations alone not all end: {result.diagnosis()}")
    gaps = np.full(len(tasks), math.nan)
    # Turns come in the order of completion: the last one of each conversation stays.
    for conversation, gap in zip(turns["conversation"], turns["gap_mean_s"], strict=True):
        gaps[conversation] = gap
    tools = np.array([math.fsum(turn.gap_s for turn in task.turns) for task in tasks])
    return Alone(
        ttfet_s=np.asarray(told["ttfet_s"]) - np.asarray(told["tool_s"]),
        whole_s=np.asarray(told["done_s"]) - np.asarray(told["arrival_s"]) - tools,
        last_gap_s=gaps,
    )
