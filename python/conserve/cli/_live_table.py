"""The live comparison as tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.text import Text

from conserve._counted import counted
from conserve._trimmed import Trimmed
from conserve.sim.contender import all_both

from ._fit import Column, fitted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from conserve.live.compare import Comparison
    from conserve.live.engines import Engines
    from conserve.live.plan import LivePlan
    from conserve.live.predict import Prediction
    from conserve.sim.stats import Interval

__all__ = ["show"]

_NAMES = {"ttfet_p95_s": "p95 TTFET", "ttft_p95_s": "p95 TTFT", "tbt_last_p95_s": "p95 last-turn TBT"}
_FAILURES_SHOWN = 10


def show(plan: LivePlan, engines: Engines, told: Comparison, console: Console) -> None:
    """Prints what was measured, and what the simulator says to it."""
    _print(_measured(plan, engines, told, console.width), console)
    if len(plan.policies) > 1:
        _print(_paired(plan, told, console.width), console)
    for line in _overloaded(plan, told):
        _say(line, console)
    if lone := _lone(plan, told):
        _say(lone, console)
    if all(math.isnan(one.tokens_per_j.mean) for one in told.outcomes):
        _say("tokens/J: no energy counter", console)
    failures = [
        f"{one.policy}, round {one.number + 1}, {each.script.id}: {each.failure}"
        for one in told.rounds
        for each in one.told
        if each.failure is not None
    ]
    for line in failures[:_FAILURES_SHOWN]:
        _say(f"failed: {line}", console)
    for prediction in told.predictions:
        _predicted(prediction, console)


def _measured(plan: LivePlan, engines: Engines, told: Comparison, width: int) -> list[Table]:
    outcomes = told.outcomes
    alike = [policy for policy in plan.policies if engines.all_both(policy)]
    return fitted(
        [Column("policy", [one.policy for one in outcomes])],
        [
            Column("p50 TTFET s", [_number(one.ttfet_p50_s) for one in outcomes]),
            Column("p95 TTFET s", [_number(one.ttfet_p95_s) for one in outcomes]),
            Column("p95 without tools", [_number(one.ttfet_no_tool_p95_s) for one in outcomes]),
            Column("p95 TTFT s", [_number(one.ttft_p95_s) for one in outcomes]),
            Column("last TBT ms", [_number(one.tbt_last_p95_s, times=1000) for one in outcomes]),
            Column("handoffs", [f"{one.handoffs:.2f}" for one in outcomes]),
            Column("computed", [f"{one.computed_ratio:.2f}x" for one in outcomes]),
            Column("tokens/J", [_number(one.tokens_per_j) for one in outcomes]),
            Column("unstable", [f"{one.unstable}/{plan.rounds}" for one in outcomes]),
        ],
        width=width,
        title=f"{engines.words}: {plan.words}{all_both(alike)}",
    )


def _paired(plan: LivePlan, told: Comparison, width: int) -> list[Table]:
    outcomes = told.outcomes[1:]
    return fitted(
        [Column("policy", [one.policy for one in outcomes])],
        [
            Column(_NAMES["ttfet_p95_s"], [_percent(one.ttfet_p95_change) for one in outcomes]),
            Column(_NAMES["ttft_p95_s"], [_percent(one.ttft_p95_change) for one in outcomes]),
            Column(_NAMES["tbt_last_p95_s"], [_percent(one.tbt_last_p95_change) for one in outcomes]),
        ],
        width=width,
        title=f"Against {plan.policies[0]}, paired over rounds",
    )


def _overloaded(plan: LivePlan, told: Comparison) -> list[str]:
    """What to say where rounds have no percentile, though nothing failed."""
    return [
        f"{one.policy}: the backlog grew in {one.unstable} of {counted(plan.rounds, 'round')}, more came than was served; "
        f"compare below {plan.rate_per_s:g}/s."
        for one in told.outcomes
        if one.unstable and not one.failed
    ]


def _lone(plan: LivePlan, told: Comparison) -> str | None:
    """What to say where a figure is of one round only."""
    if plan.rounds == 1:
        return (
            "One round has no spread: what differs here may be chance. --rounds 3 or more gives each figure its ± "
            "and each change its interval."
        )
    if any(one.ttfet_p95_s.count == 1 or one.ttfet_p95_change.count == 1 for one in told.outcomes):
        return "A figure without ± is of one round, the only one that was stable: what differs by it may be chance."
    return None


def _print(tables: list[Table], console: Console) -> None:
    console.print(Trimmed(*tables))


def _say(line: str, console: Console) -> None:
    console.print(Trimmed(Text(line)))


def _predicted(prediction: Prediction, console: Console) -> None:
    measured = prediction.measured
    how = (
        f"all engines at work (steps x{measured.busy:.2f})"
        if prediction.busy_constants
        else "each engine by itself"
    )
    policies = prediction.policies
    tables = fitted(
        [Column("policy", [one.policy for one in policies])],
        [
            Column("p95 TTFET s", [_number(one.ttfet_p95_s) for one in policies]),
            Column("p95 TTFT s", [_number(one.ttft_p95_s) for one in policies]),
            Column("last TBT ms", [_number(one.tbt_last_p95_s, times=1000) for one in policies]),
            Column("handoffs", [f"{one.handoffs:.2f}" for one in policies]),
            Column("computed", [f"{one.computed_ratio:.2f}x" for one in policies]),
        ],
        width=console.width,
        title=f"Simulated, with the steps of {how}",
    )
    _print(tables, console)
    for order in prediction.orders:
        right = len(order.told_apart) - len(order.wrong)
        told = (
            f"the simulator has {right} of the {len(order.told_apart)} pairs right that differ live beyond chance"
            if order.told_apart
            else "no two policies differ live beyond chance"
        )
        _say(
            f"{_NAMES[order.metric]}: live {' < '.join(order.live)}; simulated {' < '.join(order.simulated)}; {told}",
            console,
        )
        for better, worse in order.wrong:
            _say(f"  not so in the simulator: {better} better than {worse}", console)


def _number(interval: Interval, *, times: float = 1.0) -> str:
    if math.isnan(interval.mean):
        return "—"
    half = (interval.high - interval.low) / 2
    spread = "" if math.isinf(half) else f" ±{times * half:.2g}"
    return f"{times * interval.mean:.3g}{spread}"


def _percent(interval: Interval) -> str:
    if math.isnan(interval.mean):
        return "—"
    if math.isinf(interval.high):
        return f"{interval.mean:+.0f} %"
    return f"{interval.mean:+.0f} % [{interval.low:+.0f}, {interval.high:+.0f}]"
