"""`conserve sim paper`: every number of the paper and what the simulator makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from conserve.errors import ConfigError
from conserve.sim.paper.blocks import as_html, as_markdown
from conserve.sim.paper.report import TITLE, report
from conserve.sim.paper.run import PARTS, Plan, run
from conserve.sim.workload import WORKLOADS, traces_dir

__all__ = ["paper"]

_INTERRUPTED: Final = 130
_MISUSED: Final = 2


def paper(
    out: Annotated[Path, typer.Option(help="Folder of the report and of finished runs.")] = Path("out/paper"),
    small: Annotated[bool, typer.Option("--small", help="Fewer seeds, traces and conversations.")] = False,
    part: Annotated[list[str] | None, typer.Option(help=f"Only this: {', '.join(PARTS)}.")] = None,
    trace: Annotated[list[str] | None, typer.Option(help="Only this in full mode; all by default.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each setting.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="At once; by default one for each core.")
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of recorded traces; without one they are generated.")
    ] = None,
) -> None:
    """Reproduce the paper: each claim with ours and a verdict, what its method does, and every policy on every trace.

    Finished runs are kept in the folder: interrupted, the command goes on where it was.

    Exit status: 0; 2 an option is wrong; 130 interrupted.
    """
    from conserve.sim.paper.plots import draw  # Needs matplotlib, which a comparison of policies does not.

    console = Console(stderr=True)
    try:
        plan = _plan(out, small, part, trace, seeds, processes, traces)
        with _progress(console) as progress:
            tasks = {}

            def done(name: str, finished: int, of: int) -> None:
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=of)
                progress.update(tasks[name], completed=finished, total=of)

            results = run(plan, done=done)
    except (ConfigError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        says = "interrupted; the same command goes on from here" if stopped else str(error)
        console.print(f"conserve sim paper: {says}", markup=False, highlight=False)
        raise typer.Exit(_INTERRUPTED if stopped else _MISUSED) from None
    (out / "paper.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, out)
    blocks = report(results)
    (out / "paper.md").write_text(as_markdown(blocks, figures=""), encoding="utf-8")
    (out / "paper.html").write_text(as_html(blocks, title=TITLE, figures=""), encoding="utf-8")
    for row in results.get("claims", ()):
        if row["id"].startswith("headline/"):
            print(
                f"{row['what']}: paper {row['paper']:g} {row['unit']}, ours {row['ours']['mean']:g}, {row['verdict']}"
            )
    print(f"report: {out / 'paper.md'}, {out / 'paper.html'}; numbers: {out / 'paper.json'}")


def _plan(
    out: Path,
    small: bool,
    part: list[str] | None,
    trace: list[str] | None,
    seeds: int | None,
    processes: int | None,
    traces: Path | None,
) -> Plan:
    unknown = set(part or ()) - set(PARTS)
    if unknown:
        raise ConfigError(f"part is {min(unknown)!r}; choose from {', '.join(PARTS)}")
    strange = set(trace or ()) - set(WORKLOADS)
    if strange:
        raise ConfigError(f"trace is {min(strange)!r}; choose from {', '.join(WORKLOADS)}")
    if traces is not None:
        # The worker processes inherit it.
        os.environ["CONSERVE_TRACES"] = str(traces)
    return Plan(
        out=out,
        recorded=traces_dir() is not None,
        small=small,
        parts=tuple(name for name in PARTS if not part or name in part),
        traces=tuple(name for name in WORKLOADS if name in (trace or ())),
        seeds=seeds,
        **({} if processes is None else {"processes": processes}),
    )


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=console)
