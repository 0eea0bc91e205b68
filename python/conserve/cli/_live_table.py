"""The live comparison as tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from conserve._counted import counted

if TYPE_CHECKING:
    from rich.console import Console

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
    console.print(_measured(plan, engines, told))
    if len(plan.policies) > 1:
        console.print(_paired(plan, told))
    if all(math.isnan(one.tokens_per_j.mean) for one in told.outcomes):
        console.print("tokens/J: no energy counter", markup=False, highlight=False)
    failures = [
        f"{one.policy}, round {one.number + 1}, {each.script.id}: {each.failure}"
        for one in told.rounds
        for each in one.told
        if each.failure is not None
    ]
    for line in failures[:_FAILURES_SHOWN]:
        console.print(f"failed: {line}", markup=False, highlight=False)
    for prediction in told.predictions:
        _predicted(prediction, console)


def _measured(plan: LivePlan, engines: Engines, told: Comparison) -> Table:
    table = _table(
        f"{engines.words}: {plan.trace} at scale {plan.scale:g}, {plan.rate_per_s:g}/s, "
        f"{counted(plan.conversations, 'conversation')}, {counted(plan.rounds, 'round')}",
        "p50 TTFET s",
        "p95 TTFET s",
        "p95 without tools",
        "p95 TTFT s",
        "last TBT ms",
        "handoffs",
        "computed",
        "tokens/J",
        "unstable",
    )
    for one in told.outcomes:
        table.add_row(
            one.policy,
            _number(one.ttfet_p50_s),
            _number(one.ttfet_p95_s),
            _number(one.ttfet_no_tool_p95_s),
            _number(one.ttft_p95_s),
            _number(one.tbt_last_p95_s, times=1000),
            f"{one.handoffs:.2f}",
            f"{one.computed_ratio:.2f}x",
            _number(one.tokens_per_j),
            f"{one.unstable}/{plan.rounds}",
        )
    return table


def _paired(plan: LivePlan, told: Comparison) -> Table:
    table = _table(f"Against {plan.policies[0]}, paired over rounds", *_NAMES.values())
    for one in told.outcomes[1:]:
        table.add_row(
            one.policy,
            _percent(one.ttfet_p95_change),
            _percent(one.ttft_p95_change),
            _percent(one.tbt_last_p95_change),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _predicted(prediction: Prediction, console: Console) -> None:
    measured = prediction.measured
    how = (
        f"all engines at work (steps x{measured.busy:.2f})"
        if prediction.busy_constants
        else "each engine by itself"
    )
    table = _table(
        f"Simulated, with the steps of {how}",
        "p95 TTFET s",
        "p95 TTFT s",
        "last TBT ms",
        "handoffs",
        "computed",
    )
    for one in prediction.policies:
        table.add_row(
            one.policy,
            _number(one.ttfet_p95_s),
            _number(one.ttft_p95_s),
            _number(one.tbt_last_p95_s, times=1000),
            f"{one.handoffs:.2f}",
            f"{one.computed_ratio:.2f}x",
        )
    console.print(table)
    for order in prediction.orders:
        right = len(order.told_apart) - len(order.wrong)
        told = (
            f"the simulator has {right} of the {len(order.told_apart)} pairs right that differ live beyond chance"
            if order.told_apart
            else "no two policies differ live beyond chance"
        )
        console.print(
            f"{_NAMES[order.metric]}: live {' < '.join(order.live)}; simulated {' < '.join(order.simulated)}; {told}",
            markup=False,
            highlight=False,
        )
        for better, worse in order.wrong:
            console.print(
                f"  not so in the simulator: {better} better than {worse}", markup=False, highlight=False
            )


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
