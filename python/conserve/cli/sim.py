"""Compare policies in the simulator."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from conserve._counted import counted
from conserve._meant import meant
from conserve._trimmed import Trimmed
from conserve.errors import ConfigError
from conserve.sim.compare import (
    MAX_CONVERSATIONS,
    MAX_ENGINES,
    MAX_SEEDS,
    PRESETS,
    SIMULATED,
    Fleet,
    Outcome,
    Plan,
    compare,
)
from conserve.sim.contender import USUAL, all_both, split_names
from conserve.sim.split import PARTS
from conserve.sim.stats import Interval
from conserve.sim.workload import SYNTHETIC, WORKLOADS, traces_dir

from ._fit import Column, console, fitted
from ._sim_paper import paper

__all__ = ["app"]

_PIPE_COLUMNS: Final = 160
_MISUSED = 2
_ONE_SEED: Final = "One seed has no spread: what differs here may be chance. --seeds 5 or more gives each change its interval."

app = typer.Typer(invoke_without_command=True)
app.command(short_help="Reproduce the paper, with a verdict on each claim.")(paper)


@app.callback()
def sim(
    context: typer.Context,
    trace: Annotated[
        str, typer.Option(help=f"One of {', '.join(WORKLOADS)}; {SYNTHETIC}NAME is never a recorded one.")
    ] = "swe-agent",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "--policies",
            help=f"Separated by commas, of {', '.join(SIMULATED)}; the first is the base. Options as in ampd(min, X=0); "
            "follow-kv@both has all workers do both.",
        ),
    ] = USUAL,
    rate: Annotated[float, typer.Option(help="Conversations per second, Poisson.")] = 0.3,
    fleet: Annotated[
        str, typer.Option(help=f"Prefillers and decoders, at most {MAX_ENGINES} in all.")
    ] = "1P3D",
    preset: Annotated[str, typer.Option(help=f"GPU and model, one of {', '.join(PRESETS)}.")] = "a40",
    conversations: Annotated[int, typer.Option(min=1, max=MAX_CONVERSATIONS, help="In each run.")] = 200,
    seeds: Annotated[
        int, typer.Option("--seeds", "--rounds", min=1, max=MAX_SEEDS, help="Runs of each policy.")
    ] = 10,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of recorded traces; without one they are generated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")] = False,
) -> None:
    """Compare policies in the simulator: the same conversations, arrivals and GPUs for each.

    Exit status: 0; 2 an option is wrong.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        name = trace.removeprefix(SYNTHETIC)
        if name not in WORKLOADS:
            raise ConfigError(
                f"--trace {trace}: choose one of {', '.join(WORKLOADS)}{meant(name, WORKLOADS)}", key="trace"
            )
        plan = Plan(
            workload=name,
            policies=split_names(policy),
            rate_per_s=rate,
            fleet=Fleet.read(fleet, preset=preset),
            conversations=conversations,
            seeds=seeds,
            traces=(traces or traces_dir()) if name == trace else None,
        )
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("simulating")
            outcomes = compare(plan, done=lambda done, of: progress.update(task, completed=done, total=of))
    except ConfigError as error:
        Console(stderr=True).print(f"conserve sim: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(_MISUSED) from None
    if as_json:
        print(json.dumps([_plain(outcome) for outcome in outcomes]))
    else:
        out = console(piped_columns=_PIPE_COLUMNS)
        out.print(Trimmed(*_tables(plan, outcomes, out.width)))
        if plan.seeds == 1:
            out.print(Trimmed(Text(_ONE_SEED)))


def _tables(plan: Plan, outcomes: list[Outcome], width: int) -> list[Table]:
    source = "recorded" if plan.traces else "generated, not recorded"
    policies = [one.policy for one in outcomes]
    alike = [name for name, told in zip(policies, plan.policies, strict=True) if plan.fleet.all_both(told)]
    title = (
        f"{plan.fleet}, {plan.workload} ({source}), {plan.rate_per_s:g}/s, "
        f"{counted(plan.conversations, 'conversation')}, {counted(plan.seeds, 'seed')}{all_both(alike)}"
    )
    changes = ["—", *(_percent(one.ttfet_p95_change) for one in outcomes[1:])]
    columns = (
        Column("p50 TTFET s", [_number(one.ttfet_p50_s) for one in outcomes]),
        Column("p95 TTFET s", [_number(one.ttfet_p95_s) for one in outcomes]),
        Column(f"p95 against {policies[0]}", changes),
        Column("p95 TTFT s", [_number(one.ttft_p95_s) for one in outcomes]),
        Column("tokens/J", [_number(one.tokens_per_j) for one in outcomes]),
        Column("handoffs", [f"{one.handoffs:.2f}" for one in outcomes]),
        Column("recomputed", [f"{one.recomputed_share:.1%}" for one in outcomes]),
        Column("unstable", [f"{one.unstable}/{plan.seeds}" for one in outcomes]),
    )
    return [
        *fitted([Column("policy", policies)], columns, width=width, title=title),
        *_where_it_goes(outcomes, width),
    ]


def _where_it_goes(outcomes: list[Outcome], width: int) -> list[Table]:
    """What the time to the first answer was spent on: all conversations, and the slowest."""
    rows = [
        row
        for one in outcomes
        for row in ((one.policy, one.ttfet_parts_s), ("  from p95 on", one.ttfet_tail_parts_s))
    ]
    columns = [
        Column(part.replace("_", " "), [_number(parts[part]) for _, parts in rows])
        for part in PARTS
        if any(parts[part].mean > 0 for _, parts in rows)
    ]
    head = Column("policy", [name for name, _ in rows])
    return fitted([head], columns, width=width, title="where TTFET goes, mean s") if columns else []


def _number(interval: Interval) -> str:
    return "—" if math.isnan(interval.mean) else f"{interval.mean:.2f}"


def _percent(interval: Interval) -> str:
    if math.isnan(interval.mean):
        return "—"
    if math.isinf(interval.high):
        return f"{interval.mean:+.1f} %"
    return f"{interval.mean:+.1f} % [{interval.low:+.1f}, {interval.high:+.1f}]"


def _plain(outcome: Outcome) -> dict[str, object]:
    plain = dataclasses.asdict(outcome)
    return {key: _finite(value) for key, value in plain.items()}


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
