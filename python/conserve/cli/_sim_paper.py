"""`conserve sim paper`: every number of the paper and what the simulator makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from conserve._meant import meant
from conserve.errors import ConfigError
from conserve.sim.paper.blocks import as_html, as_markdown
from conserve.sim.paper.folder import holding
from conserve.sim.paper.report import TITLE, report
from conserve.sim.paper.run import PARTS, Plan, run
from conserve.sim.workload import WORKLOADS, traces_dir

from ._parts import Parts

if TYPE_CHECKING:
    from conserve.sim.paper.results import Json

__all__ = ["paper"]

_INTERRUPTED: Final = 130
_MISUSED: Final = 2


def paper(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report and of finished runs; out/paper, out/paper-small if --small."
        ),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Fewer seeds, traces and conversations.")] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help=f"Only this: {', '.join(PARTS)}; may be repeated."),
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this in full mode; may be repeated; all by default."),
    ] = None,
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
    folder = out or Path("out/paper-small" if small else "out/paper")
    try:
        plan = _plan(folder, small, part, trace, seeds, processes, traces)
        with holding(folder, small=small):
            with Parts(console) as parts:
                results = run(plan, done=parts.done)
            draw(results, folder)
            _write(results, folder)
    except (ConfigError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        says = "interrupted; the same command goes on from here" if stopped else str(error)
        console.print(f"conserve sim paper: {says}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(_INTERRUPTED if stopped else _MISUSED) from None
    for row in results.get("claims", ()):
        if row["id"].startswith("headline/"):
            print(
                f"{row['what']}: paper {row['paper']:g} {row['unit']}, ours {row['ours']['mean']:g}, {row['verdict']}"
            )
    print(f"report: {folder / 'paper.md'}, {folder / 'paper.html'}; numbers: {folder / 'paper.json'}")


def _write(results: Json, folder: Path) -> None:
    (folder / "paper.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    blocks = report(results)
    (folder / "paper.md").write_text(as_markdown(blocks, figures=""), encoding="utf-8")
    (folder / "paper.html").write_text(as_html(blocks, title=TITLE, figures=""), encoding="utf-8")


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
        raise ConfigError(
            f"part is {min(unknown)!r}; choose from {', '.join(PARTS)}{meant(min(unknown), PARTS)}"
        )
    strange = set(trace or ()) - set(WORKLOADS)
    if strange:
        raise ConfigError(
            f"trace is {min(strange)!r}; choose from {', '.join(WORKLOADS)}{meant(min(strange), WORKLOADS)}"
        )
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
