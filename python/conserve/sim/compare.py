"""Policies side by side on one workload: the same conversations, arrivals and GPUs for each, repeated over seeds.

Every GPU counts for every policy: those that use prefillers get the split that is asked for, the others, and those written
with `@both`, the same number of workers that do both. A run that is not stable has no percentile; it is counted.
"""

from __future__ import annotations

import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from conserve.errors import ConfigError
from conserve.policies import POLICIES

from .contender import ORACLE, Contender
from .run import columns, joules, simulate
from .split import PARTS, Split, parts_of, split
from .stats import Interval, mean_interval, paired_change, percentile
from .workload import conversations, poisson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conserve._core import SimResult

__all__ = [
    "POLICIES",
    "PRESETS",
    "SIMULATED",
    "Fleet",
    "Outcome",
    "Plan",
    "compare",
]

SIMULATED: Final = (*POLICIES, ORACLE)
"""Those that `compare` runs: what `conserve serve` takes, and one that no router could be."""

PRESETS: Final = {
    "a40": "A40, Qwen3-0.6B",
    "a40-eager": "A40 without CUDA graphs, Qwen3-0.6B",
    "l40s": "L40S, Qwen3-0.6B",
    "a100": "A100, Qwen3-0.6B",
    "h100": "H100, Qwen3-0.6B",
    "h200": "H200, Qwen3-0.6B",
    "a40-8b": "A40, 8B model",
    "l40s-8b": "L40S, 8B model",
    "a100-8b": "A100, 8B model",
    "h200-8b": "H200, 8B model",
}
"""What each preset of an engine stands for."""

MAX_ENGINES: Final = 1024
"""Most prefillers and decoders together."""
MAX_CONVERSATIONS: Final = 100_000
MAX_SEEDS: Final = 1_000
RATES_PER_S: Final = (0.001, 10_000.0)

_FLEET: Final = re.compile(r"(\d{1,4})[pP](\d{1,4})[dD]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal GPUs, of which the first `prefillers` only compute prompts, except for contenders that do both."""

    prefillers: int
    decoders: int
    preset: str = "a40"

    def __post_init__(self) -> None:
        """Refuses a preset that there is not."""
        if self.preset not in PRESETS:
            raise ConfigError(f"preset is {self.preset!r}; choose from {', '.join(PRESETS)}", key="preset")

    @classmethod
    def read(cls, text: str, *, preset: str = "a40") -> Fleet:
        """The fleet written as `1P3D`.

        Raises:
            ConfigError: it is not written like that, lacks prefillers or decoders, or there is no such preset.
        """
        found = _FLEET.fullmatch(text)
        prefillers, decoders = map(int, found.groups()) if found else (0, 0)
        if not prefillers or not decoders or prefillers + decoders > MAX_ENGINES:
            raise ConfigError(
                f"fleet is {text!r}; write prefillers and decoders as 1P3D, 1 or more of each, at most {MAX_ENGINES} in all"
            )
        return cls(prefillers, decoders, preset)

    @property
    def split(self) -> str:
        """Prefillers and decoders: `1P3D`."""
        return f"{self.prefillers}P{self.decoders}D"

    @property
    def gpus(self) -> int:
        """How many."""
        return self.prefillers + self.decoders

    def all_both(self, policy: str) -> bool:
        """Whether they all do both under `policy`."""
        return Contender.read(policy, known=SIMULATED).does_both

    def engines(self, policy: str) -> list[dict[str, str]]:
        """The workers under `policy`, as a scenario names them."""
        roles = ["prefiller"] * self.prefillers + ["decoder"] * self.decoders
        if self.all_both(policy):
            roles = ["both"] * len(roles)
        return [{"role": role, "preset": self.preset} for role in roles]

    def __str__(self) -> str:
        """As it is written, with what its preset stands for: `1P3D of a40 (A40, Qwen3-0.6B)`."""
        return f"{self.split} of {self.preset} ({PRESETS[self.preset]})"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared. The first policy is what the others are compared with."""

    workload: str
    policies: tuple[str, ...]
    rate_per_s: float
    fleet: Fleet
    conversations: int = 200
    seeds: int = 10
    traces: Path | None = None

    def __post_init__(self) -> None:
        """Refuses what could not be run, naming the option."""
        for policy in self.policies:
            Contender.read(policy, known=SIMULATED)
        if not self.policies:
            raise ConfigError("no policy is given")
        for name, count, most in (
            ("conversations", self.conversations, MAX_CONVERSATIONS),
            ("seeds", self.seeds, MAX_SEEDS),
        ):
            if not 1 <= count <= most:
                raise ConfigError(f"{name} is {count}; it must be from 1 to {most}", key=name)
        least, most_rate = RATES_PER_S
        if not least <= self.rate_per_s <= most_rate:
            raise ConfigError(
                f"rate is {self.rate_per_s:g}; it must be from {least:g} to {most_rate:g} conversations per second",
                key="rate",
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy over all seeds; times in seconds, NaN where no seed was stable."""

    policy: str
    """In full, with the options by which it decided."""
    fleet: str
    """The workers that it had: `1P3D`, or `4 both`."""
    ttfet_p50_s: Interval
    ttfet_p95_s: Interval
    ttft_p95_s: Interval
    tokens_per_j: Interval
    handoffs: float
    """For each conversation."""
    recomputed_share: float
    """Of all prompt tokens that were computed."""
    unstable: int
    """Seeds whose backlog grew while conversations arrived, or that did not finish."""
    ttfet_p95_change: Interval
    """Against the first policy, in percent, over the seeds in which both were stable."""
    ttfet_parts_s: dict[str, Interval]
    """What the time to the first answer was spent on, by `conserve.sim.split.PARTS`: they add up to its mean."""
    ttfet_tail_parts_s: dict[str, Interval]
    """The same of the conversations at or above the 95th percentile."""


@dataclass(frozen=True, slots=True)
class _Run:
    policy: str
    stable: bool
    ttfet_p50_s: float
    ttfet_p95_s: float
    ttft_p95_s: float
    tokens_per_j: float
    handoffs: float
    recomputed: int
    computed: int
    split: Split


def compare(plan: Plan, *, done: Callable[[int, int], None] | None = None) -> list[Outcome]:
    """Runs every policy over every seed, on all cores; `done` hears how many of how many runs are over.

    Raises:
        ConfigError: the workload, the rate or the fleet cannot be.
    """
    cells = [(policy, seed) for seed in range(1, plan.seeds + 1) for policy in plan.policies]
    runs: dict[tuple[str, int], _Run] = {}
    # The core lets go of the GIL while it runs.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for cell, run in zip(cells, pool.map(lambda cell: _one(plan, *cell), cells), strict=True):
            runs[cell] = run
            if done is not None:
                done(len(runs), len(cells))
    return [_outcome(plan, policy, runs) for policy in plan.policies]


def _one(plan: Plan, policy: str, seed: int) -> _Run:
    tasks = conversations(plan.workload, plan.conversations, seed=seed, traces=plan.traces)
    arrivals = poisson(len(tasks), rate_per_s=plan.rate_per_s, seed=seed)
    workload = columns(tasks, arrivals_s=arrivals, shared_prefix=True)
    contender = Contender.read(policy, known=SIMULATED)
    scenario = {"engines": plan.fleet.engines(policy), "policy": {"name": contender.policy}}
    return _read(simulate(scenario, workload, seed=seed))


def _read(result: SimResult) -> _Run:
    turns, told, engines, counters = (
        result.turns(),
        result.conversations(),
        result.engines(),
        result.counters(),
    )
    diagnosis = result.diagnosis()
    waits = [first - ready for first, ready in zip(turns["first_token_s"], turns["ready_s"], strict=True)]
    spent = joules(result)
    return _Run(
        policy=result.policy,
        stable=diagnosis["outcome"] == "finished" and not diagnosis["unstable"],
        ttfet_p50_s=percentile(told["ttfet_s"], 50),
        ttfet_p95_s=percentile(told["ttfet_s"], 95),
        ttft_p95_s=percentile(waits, 95),
        tokens_per_j=sum(engines["generated_tokens"]) / spent if spent else math.nan,
        handoffs=counters["handoffs"] / len(told["ttfet_s"]),
        recomputed=sum(engines["recomputed_tokens"]),
        computed=sum(engines["prefill_tokens"]),
        split=split(parts_of(result), np.asarray(told["ttfet_s"])),
    )


def _outcome(plan: Plan, policy: str, runs: dict[tuple[str, int], _Run]) -> Outcome:
    seeds = range(1, plan.seeds + 1)
    own = [runs[policy, seed] for seed in seeds]
    stable = [run for run in own if run.stable]
    base = [runs[plan.policies[0], seed] for seed in seeds]
    pairs = [(run, other) for run, other in zip(own, base, strict=True) if run.stable and other.stable]
    computed = sum(run.computed for run in own)
    return Outcome(
        policy=Contender.read(policy, known=SIMULATED).called(own[0].policy),
        fleet=f"{plan.fleet.gpus} both" if plan.fleet.all_both(policy) else plan.fleet.split,
        ttfet_p50_s=_mean(run.ttfet_p50_s for run in stable),
        ttfet_p95_s=_mean(run.ttfet_p95_s for run in stable),
        ttft_p95_s=_mean(run.ttft_p95_s for run in stable),
        tokens_per_j=_mean(run.tokens_per_j for run in stable),
        handoffs=math.fsum(run.handoffs for run in own) / len(own),
        recomputed_share=sum(run.recomputed for run in own) / computed if computed else 0.0,
        unstable=len(own) - len(stable),
        ttfet_p95_change=paired_change(
            [run.ttfet_p95_s for run, _ in pairs], [run.ttfet_p95_s for _, run in pairs]
        ),
        ttfet_parts_s={part: _mean(run.split.mean[part] for run in stable) for part in PARTS},
        ttfet_tail_parts_s={part: _mean(run.split.tail[part] for run in stable) for part in PARTS},
    )


def _mean(values: Iterator[float]) -> Interval:
    return mean_interval(list(values))
