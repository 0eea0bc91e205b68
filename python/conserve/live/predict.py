"""The same rounds in the simulator, with the constants measured on these engines, and whether both put the policies in one order.

A pair of policies counts as told apart live if the paired interval of their difference excludes zero; only those can be right or
wrong in the simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from conserve.sim.contender import Contender
from conserve.sim.run import columns, simulate
from conserve.sim.stats import Interval, mean_interval, paired_change, percentile

from .outcome import figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .engines import Engines
    from .plan import LivePlan
    from .probe import Measured, Steps
    from .run import Round

__all__ = ["METRICS", "Order", "Predicted", "Prediction", "predict"]

_NO_TIME: Final = 1e15
"""Bytes per second, where a longer handoff takes no longer."""
METRICS: Final = ("ttfet_p95_s", "ttft_p95_s", "tbt_last_p95_s")


@dataclass(frozen=True, slots=True)
class Predicted:
    """One policy, simulated over the same rounds."""

    policy: str
    ttfet_p95_s: Interval
    ttft_p95_s: Interval
    tbt_last_p95_s: Interval
    handoffs: float
    computed_ratio: float


@dataclass(frozen=True, slots=True)
class Order:
    """One metric's order of policies, best first, live and simulated."""

    metric: str
    live: tuple[str, ...]
    simulated: tuple[str, ...]
    told_apart: tuple[tuple[str, str], ...]
    """Pairs that differ live beyond chance, the better one first."""
    wrong: tuple[tuple[str, str], ...]
    """Those of them that the simulator puts the other way round, or does not tell apart."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Constants, results and orders; `busy_constants` says that steps were those of engines that all work at once."""

    measured: Measured
    busy_constants: bool
    policies: tuple[Predicted, ...]
    orders: tuple[Order, ...]


def predict(
    plan: LivePlan,
    engines: Engines,
    rounds: Sequence[Round],
    measured: Measured,
    *,
    context_limit: int,
    busy_constants: bool,
) -> Prediction:
    """Simulates every policy over the rounds that were run live."""
    simulated = {
        policy: [
            _simulate(plan, engines, measured, policy, number, context_limit, busy=busy_constants)
            for number in range(plan.rounds)
        ]
        for policy in plan.policies
    }
    return Prediction(
        measured=measured,
        busy_constants=busy_constants,
        policies=tuple(
            Predicted(
                policy=policy,
                ttfet_p95_s=mean_interval([run["ttfet_p95_s"] for run in runs]),
                ttft_p95_s=mean_interval([run["ttft_p95_s"] for run in runs]),
                tbt_last_p95_s=mean_interval([run["tbt_last_p95_s"] for run in runs]),
                handoffs=math.fsum(run["handoffs"] for run in runs) / len(runs),
                computed_ratio=math.fsum(run["computed_ratio"] for run in runs) / len(runs),
            )
            for policy, runs in simulated.items()
        ),
        orders=tuple(_order(metric, plan.policies, rounds, simulated) for metric in METRICS),
    )


def scenario(engines: Engines, measured: Measured, policy: str, *, busy: bool) -> dict[str, object]:
    """The engines as the simulator takes them; KV is counted in tokens, so a byte is one."""
    factor = measured.busy if busy else 1.0
    made = [
        {
            "name": worker.name,
            "role": worker.role_under(policy),
            "grid": _grid(measured.of(worker.name), factor),
            "cost": {"overhead_s": 0.0, "kv_bytes_per_token": 1.0},
            "kv_tokens": tokens,
            "block_size": measured.block_size,
            "max_num_batched_tokens": measured.of(worker.name).chunk_tokens,
        }
        for worker, tokens in zip(engines.workers, measured.kv_tokens, strict=True)
    ]
    link: dict[str, object] = {"overlap": False}
    if measured.handoff_latency_s is not None:
        link |= {
            "latency_s": measured.handoff_latency_s,
            "bytes_per_s": measured.handoff_tokens_per_s or _NO_TIME,
        }
    return {
        "engines": made,
        "policy": {"name": Contender.read(policy).policy},
        "link": link,
        # From the client to the door, and from there to the worker.
        "round_trip_s": 2 * measured.round_trip_s,
    }


def _grid(steps: Steps, factor: float) -> dict[str, object]:
    return {
        "decode_batch": steps.decode_batch,
        "decode_context": steps.decode_context,
        "decode_s": [[factor * value for value in row] for row in steps.decode_s],
        "prefill_new": steps.prefill_new,
        "prefill_past": steps.prefill_past,
        "prefill_s": [[factor * value for value in row] for row in steps.prefill_s],
    }


def _simulate(
    plan: LivePlan,
    engines: Engines,
    measured: Measured,
    policy: str,
    number: int,
    context_limit: int,
    *,
    busy: bool,
) -> dict[str, float]:
    tasks = plan.tasks(number, context_limit=context_limit)
    work = columns(tasks, arrivals_s=plan.arrivals_s(number, len(tasks)), shared_prefix=True)
    result = simulate(scenario(engines, measured, policy, busy=busy), work, seed=plan.seed_of(number))
    turns, told, counted = result.turns(), result.conversations(), result.engines()
    last: dict[int, tuple[int, float]] = {}
    for conversation, turn, gap_s in zip(
        turns["conversation"], turns["turn"], turns["gap_mean_s"], strict=True
    ):
        if turn >= last.get(conversation, (-1, 0.0))[0]:
            last[conversation] = (turn, gap_s)
    waits = [first - ready for first, ready in zip(turns["first_token_s"], turns["ready_s"], strict=True)]
    due = sum(turn.append_tokens for task in tasks for turn in task.turns)
    return {
        "ttfet_p95_s": percentile(told["ttfet_s"], 95),
        "ttft_p95_s": percentile(waits, 95),
        "tbt_last_p95_s": percentile([gap_s for _, gap_s in last.values()], 95),
        "handoffs": result.counters()["handoffs"] / len(tasks),
        "computed_ratio": sum(counted["prefill_tokens"]) / due,
    }


def _order(
    metric: str,
    policies: Sequence[str],
    rounds: Sequence[Round],
    simulated: dict[str, list[dict[str, float]]],
) -> Order:
    live = {
        policy: [
            float(getattr(seen, metric)) if seen.is_stable else math.nan
            for seen in (
                figures(one) for one in sorted(rounds, key=lambda one: one.number) if one.policy == policy
            )
        ]
        for policy in policies
    }
    seen = {policy: mean_interval(values).mean for policy, values in live.items()}
    made = {policy: mean_interval([run[metric] for run in runs]).mean for policy, runs in simulated.items()}
    apart, wrong = [], []
    for one, other in combinations(policies, 2):
        change = paired_change(live[one], live[other])
        if not change.excludes_zero:
            continue
        better, worse = (one, other) if change.mean < 0 else (other, one)
        apart.append((better, worse))
        if made[better] >= made[worse]:
            wrong.append((better, worse))
    return Order(
        metric=metric,
        live=tuple(sorted(policies, key=lambda policy: seen[policy])),
        simulated=tuple(sorted(policies, key=lambda policy: made[policy])),
        told_apart=tuple(apart),
        wrong=tuple(wrong),
    )
