"""Full mode over traces, loads, policies and seeds: which runs, and the table that comes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conserve.sim.run import columns, simulate
from conserve.sim.stats import mean_interval, paired_change
from conserve.sim.workload import generate

from .full import SLOS, Trial, as_cell, first_share, gpus
from .results import Json, Sample, plain, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .cells import Cell, Store

__all__ = ["BASE", "Trials", "variant"]

BASE: Final = "collocated"
"""The fair baseline that the others are compared with: affinity, the same gate, no handoff."""

LONGER: Final = {"claude-code-fresh": 4, "claude-code-resumed": 4}
"""Workloads whose conversations have many times the turns of the others'."""

_SPREADS: Final = ("ttfet", "ttfet_own", "ttft", "tbt")
_COLUMNS: Final = (
    *(f"{name}_p{share}_s" for name in _SPREADS for share in (50, 95, 99)),
    *(f"attained_{multiple}x" for multiple in SLOS),
    *(f"goodput_{multiple}x_per_s" for multiple in SLOS),
    "tokens_per_j",
    "handoffs",
    "recomputed_share",
)
_COMPARED: Final = ("ttfet_own_p95_s", "tbt_p95_s", "tokens_per_j")


def variant(policy: str) -> str:
    """The policy in full, with the options by which it decides."""
    workload = columns(list(generate("swe-agent", 1, seed=1)), arrivals_s=[0.0])
    return simulate({"engines": gpus(policy), "policy": {"name": policy}}, workload, seed=1).policy


@dataclass(frozen=True, slots=True)
class Trials:
    """All policies on all workloads at all loads."""

    workloads: tuple[str, ...]
    policies: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: int
    conversations: int
    recorded: bool

    def count(self, workload: str) -> int:
        """Conversations of a run: fewer where one is as long as many of another trace."""
        return max(1, self.conversations // LONGER.get(workload, 1))

    def probes(self) -> Iterator[Cell]:
        """The runs that say what load 1 is, one for each workload."""
        for workload in self.workloads:
            yield self._probe(workload)

    def _probe(self, workload: str) -> Cell:
        return {
            "kind": "capacity",
            "workload": workload,
            "count": self.count(workload),
            "recorded": self.recorded,
        }

    def capacity_per_s(self, store: Store, workload: str) -> float:
        """Load 1 of a workload; its probe must have been run."""
        found = store.get(self._probe(workload))
        if found is None:
            raise KeyError(f"not probed: {workload}")
        return found["capacity_per_s"]

    def first_share(self, workload: str) -> float:
        """Percent of the prompt tokens that first turns bring."""
        return first_share(workload, count=self.count(workload), recorded=self.recorded)

    def _cell(self, store: Store, workload: str, load: float, policy: str, seed: int) -> Cell:
        rate = load * self.capacity_per_s(store, workload)
        # A rate of four digits says as much, and reads well.
        rounded = float(f"{rate:.4g}")
        return as_cell(Trial(workload, self.recorded, policy, rounded, seed, self.count(workload)))

    def cells(self, store: Store) -> Iterator[Cell]:
        """Every run, long workloads last. Those of one workload and seed follow each other: they share what is cached."""
        for workload in sorted(self.workloads, key=lambda name: LONGER.get(name, 1)):
            for seed in range(1, self.seeds + 1):
                for load in self.loads:
                    for policy in self.policies:
                        yield self._cell(store, workload, load, policy, seed)

    def rows(self, store: Store) -> list[Json]:
        """One row for each workload, load and policy."""
        return [
            self._row(store, workload, load, policy)
            for workload in self.workloads
            for load in self.loads
            for policy in self.policies
        ]

    def _sample(self, store: Store, workload: str, load: float, policy: str) -> Sample:
        return sample(store, lambda seed: self._cell(store, workload, load, policy, seed), self.seeds)

    def _row(self, store: Store, workload: str, load: float, policy: str) -> Json:
        own = self._sample(store, workload, load, policy)
        base = self._sample(store, workload, load, BASE)
        stable = [run for run in own.runs if not run["unstable"]]
        pairs = [
            (run, other)
            for run, other in zip(own.runs, base.runs, strict=True)
            if not run["unstable"] and not other["unstable"]
        ]
        row: Json = {
            "workload": workload,
            "load": load,
            "rate_per_s": float(f"{load * self.capacity_per_s(store, workload):.4g}"),
            "policy": policy,
            "unstable": own.unstable,
            "against_unstable": self.seeds - len(pairs),
        }
        for name in _COLUMNS:
            values = [run[name] for run in stable]
            # The stable minority of an unstable setting would be a choice of lucky seeds.
            row[name] = plain(mean_interval(values if 2 * len(stable) > self.seeds else []))
        for name in _COMPARED:
            ours, theirs = [run[name] for run, _ in pairs], [run[name] for _, run in pairs]
            known = 2 * len(pairs) > self.seeds and not any(map(math.isnan, (*ours, *theirs)))
            row[f"{name}_change"] = plain(paired_change(ours, theirs) if known else mean_interval([]))
        return row
