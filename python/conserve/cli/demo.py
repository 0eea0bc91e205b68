"""Run a whole cluster on this machine, with a report."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from conserve.demo import DemoError, Options, run_demo
from conserve.demo.options import default_workdir
from conserve.demo.progress import progress_for
from conserve.demo.tables import show

from ._fit import console

FAILED = 1
WRONG_USE = 2
NOT_RUN = 3
INTERRUPTED = 130
LOG_COLUMNS = 120


def demo(
    conversations: Annotated[int, typer.Option(help="Agents that work at the same time.")] = 8,
    turns: Annotated[
        int, typer.Option(help="Turns of each conversation; a tool runs before each but the first.")
    ] = 4,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Serve the same on one engine too; fail unless every text is equal and every promise kept.",
        ),
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as data to FILE.")
    ] = None,
    no_headers: Annotated[
        bool,
        typer.Option("--no-headers", help="Send no conversation id: the router recognises the histories."),
    ] = False,
    tenants: Annotated[
        int, typer.Option(help="Callers with different keys that use the same conversation ids.")
    ] = 1,
    workdir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory the agents work on; by default this project's source."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="smollm2, random (tiny, for tests), or the folder of a Hugging Face model.")
    ] = "smollm2",
    threads: Annotated[int, typer.Option(help="CPU threads of each engine.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 24,
) -> None:
    """A whole cluster on this machine: 1 prefiller, 2 decoders, a router, agents at work, and a report.

    Exit status: 0 done; 1 a check failed; 2 wrong use; 3 the demo could not run; 130 interrupted.
    """
    out = console(piped_columns=LOG_COLUMNS)
    errors = Console(stderr=True)
    try:
        options = Options(
            workdir=(workdir or default_workdir()).resolve(),
            conversations=conversations,
            turns=turns,
            tenants=tenants,
            headers=not no_headers,
            check=check,
            model=model,
            threads=threads,
            max_tokens=max_tokens,
        )
        if not options.workdir.is_dir():
            raise ValueError(f"--workdir {options.workdir}: is not a directory")
        if json_path is not None and not json_path.absolute().parent.is_dir():
            raise ValueError(f"--json {json_path}: there is no folder {json_path.absolute().parent}")
    except ValueError as error:
        errors.print(f"conserve demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(WRONG_USE) from None
    try:
        with progress_for(out) as progress:
            report = asyncio.run(run_demo(options, progress))
    except DemoError as error:
        errors.print(f"conserve demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(NOT_RUN) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        errors.print("conserve demo: interrupted; every process it started has ended", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    if json_path is not None:
        json_path.write_text(
            json.dumps(report.as_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    show(report, out)
    if report.problems:
        raise typer.Exit(FAILED)
