"""The whole of `make paper`: runs what is missing, then gathers every table into one mapping."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from conserve.sim.compare import POLICIES, SIMULATED
from conserve.sim.workload import WORKLOADS

from . import full, mode
from .cells import Cell, Store, Values, code_version, run_all
from .experiments import Experiments
from .misled import Misled
from .trials import Trials, variant
from .waterfall import Waterfall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .results import Json

__all__ = ["PARTS", "Plan", "gather", "run"]

PARTS: Final = ("claims", "waterfall", "errors", "full")
_SMALL_WORKLOADS: Final = ("swebench", "swe-agent", "mini-swe", "tau-bench", "mooncake-chat")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    out: Path
    recorded: bool
    """Recorded traces are at hand (CONSERVE_TRACES); else generated ones."""
    small: bool = False
    parts: tuple[str, ...] = PARTS
    seeds: int | None = None
    traces: tuple[str, ...] = ()
    """Only these workloads in full mode."""
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)

    @property
    def command(self) -> str:
        """What to type for the same run."""
        words = ["conserve sim paper"]
        words += ["--small"] * self.small
        words += [f"--part {part}" for part in self.parts if self.parts != PARTS]
        words += [f"--trace {trace}" for trace in self.traces]
        words += [f"--seeds {self.seeds}"] * (self.seeds is not None)
        return " ".join(words)

    @property
    def repeats(self) -> int:
        """Seeds of each setting."""
        return self.seeds if self.seeds is not None else 3 if self.small else 10

    @property
    def experiments(self) -> Experiments:
        """The paper's figures. A small run has fewer seeds, not fewer conversations: a backlog is as long as its run."""
        return Experiments(self.repeats, 256)

    @property
    def waterfall(self) -> Waterfall:
        """From its method to the honest one."""
        return Waterfall(self.repeats, 256, _baseline())

    @property
    def trials(self) -> Trials:
        """Full mode."""
        return Trials(
            workloads=self.traces or (_SMALL_WORKLOADS if self.small else tuple(WORKLOADS)),
            policies=SIMULATED,
            loads=full.LOADS[-1:] if self.small else full.LOADS,
            seeds=self.repeats,
            conversations=60 if self.small else 400,
            recorded=self.recorded,
        )

    @property
    def misled(self) -> Misled:
        """What errors cost in full mode."""
        of = self.trials
        return Misled(of.seeds, of.conversations, of.recorded)


def _baseline() -> str:
    return next(name for name in mode.BASELINES if name in POLICIES)


def run_cell(cell: Cell) -> Values:
    """The values of one cell."""
    told = {name: value for name, value in cell.items() if name != "kind"}
    match cell["kind"]:
        case "paper":
            return mode.measure(mode.Setting(**told))  # type: ignore[arg-type]
        case "full":
            return full.measure(full.Trial(**told))  # type: ignore[arg-type]
        case "capacity":
            return {"capacity_per_s": full.capacity_per_s(**told)}  # type: ignore[arg-type]
        case kind:
            raise ValueError(f"no such kind of cell: {kind}")


def run(plan: Plan, *, done: Callable[[str, int, int], None] | None = None) -> Json:
    """Runs the cells that are not in `plan.out` yet and gathers the tables; `done` hears part, done and all.

    Raises:
        ConfigError: a trace is broken.
    """
    store = Store(plan.out / "cells.jsonl")

    def cells(part: str, wanted: list[Cell]) -> None:
        def note(finished: int, of: int) -> None:
            if done is not None:
                done(part, finished, of)

        run_all(wanted, run_cell, store, processes=plan.processes, done=note)

    if "claims" in plan.parts:
        cells("claims", list(plan.experiments.cells()))
    if "waterfall" in plan.parts:
        cells("waterfall", list(plan.waterfall.cells()))
    if "errors" in plan.parts:
        cells("load 1", list(plan.misled.probes()))
        cells("errors", list(plan.misled.cells(store)))
    if "full" in plan.parts:
        cells("load 1", list(plan.trials.probes()))
        cells("full", list(plan.trials.cells(store)))
    return gather(plan, store)


def gather(plan: Plan, store: Store) -> Json:
    """Every table, from cells that were run."""
    results: Json = {
        "command": plan.command,
        "seeds": plan.repeats,
        "small": plan.small,
        "recorded": plan.recorded,
        "code": code_version(),
        "baseline": variant(_baseline()),
    }
    if "claims" in plan.parts:
        of = plan.experiments
        results["claims"] = of.claims(store)
        results["causes"] = of.causes(store)
        results["lines"] = of.lines(store)
        results["by_kv_read"] = of.by_kv_read(store)
        results["by_watts"] = of.by_watts(store)
    if "waterfall" in plan.parts:
        results["waterfall"] = plan.waterfall.steps(store)
        results["causes_off"] = plan.waterfall.causes(store)
    if "errors" in plan.parts:
        results["errors"] = plan.misled.gather(store)
    if "full" in plan.parts:
        trials = plan.trials
        results["full"] = {
            "conversations": {name: trials.count(name) for name in trials.workloads},
            "policies": list(trials.policies),
            "variants": {policy: variant(policy) for policy in trials.policies},
            "capacity_per_s": {name: trials.capacity_per_s(store, name) for name in trials.workloads},
            "first_share": {name: trials.first_share(name) for name in trials.workloads},
            "rows": trials.rows(store),
        }
    return {key: _round(value) for key, value in results.items()}


def _round(value: object) -> object:
    """Six digits, and nine behind the point, are more than any of these numbers is good for."""
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_round(each) for each in value]
    if isinstance(value, float):
        # Plus nought: there is no minus nought.
        return float(f"{round(value, 9):.6g}") + 0.0 if math.isfinite(value) else None
    return value
