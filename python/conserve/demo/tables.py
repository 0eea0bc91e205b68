"""The report as tables on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conserve._counted import counted
from conserve._trimmed import Trimmed

from .report import Report, placements

_WIDE = 114
_PATH_CHARS = 32


def show(report: Report, console: Console) -> None:
    """Print the conversations, the fleet, and the verdict of `--check`."""
    console.print(Trimmed(conversations_table(report, width=console.width), workers_table(report)))
    console.print(Trimmed(Text(_summary(report))))
    for problem in report.problems:
        console.print(Trimmed(Text(f"✗ {problem}", style="bold red")))
    for mishap in report.mishaps:
        if mishap not in report.problems:
            console.print(Trimmed(Text(f"! {mishap}", style="bold yellow")))
    for warning in report.warnings:
        console.print(Trimmed(Text(f"    {warning}")))
    if report.logs is not None:
        console.print(Text(f"The logs of all processes are in {report.logs}"), soft_wrap=True)
    if report.checked and not report.problems:
        proven = (
            f"✓ {_all(len(report.conversations))}: one handoff, one decoder, nothing computed twice beyond "
            "partial blocks, and every text equal to a single engine's"
        )
        console.print(Trimmed(Text(proven, style="bold green")))


def conversations_table(report: Report, *, width: int) -> Table:
    """One row for each conversation; the file is shown where `width` columns leave room for it."""
    with_file = width >= _WIDE
    columns = ("conversation", *(["file"] if with_file else []), "decoder")
    table = _table("Conversations", *columns, padding=0)
    for name in ("turns", "handoffs", "TTFET s", "new", "resident", "recomputed", "partial"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in report.conversations:
        table.add_row(
            one.agent.label,
            *([_shortened(one.agent.plan.path)] if with_file else []),
            one.decoder,
            str(len(one.turns)),
            str(one.handoffs),
            "—" if one.ttfet_s is None else f"{one.ttfet_s:.2f}",
            f"{one.new_tokens:,}",
            f"{one.resident_tokens:,}",
            f"{one.recomputed_tokens:,}",
            f"{one.partial_block_tokens:,}",
        )
    return table


def workers_table(report: Report) -> Table:
    """One row for each worker, from its own metrics."""
    title = "Workers: prompt tokens by source, booked KV blocks"
    table = _table(title, "worker", "role")
    for name in ("pinned", "computed", "resident", "pulled", "generated", "booked"):
        table.add_column(name, justify="right", no_wrap=True)
    pinned = placements(report.conversations)
    for worker in report.fleet.workers:
        table.add_row(
            worker.name,
            worker.role,
            str(pinned.get(worker.name, 0)) if worker.role != "prefiller" else "",
            f"{worker.computed_tokens:,}",
            f"{worker.resident_tokens:,}",
            f"{worker.pulled_tokens:,}",
            f"{worker.generated_tokens:,}",
            f"{report.fleet.booked_blocks.get(worker.name, 0):,}",
        )
    return table


def _table(title: str, *columns: str, padding: int = 1) -> Table:
    """A table with its left-aligned columns; the widest fits 80 columns without padding."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, padding), pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _shortened(path: str) -> str:
    """The end of a long path, which says more than its beginning."""
    return path if len(path) <= _PATH_CHARS else "…" + path[1 - _PATH_CHARS :]


def _all(count: int) -> str:
    return "the conversation" if count == 1 else f"all {count} conversations"


def _summary(report: Report) -> str:
    handoffs = sum(one.handoffs for one in report.conversations)
    turns = sum(len(one.turns) for one in report.conversations)
    text = (
        f"{counted(len(report.conversations), 'conversation')}, {counted(turns, 'turn')}, {counted(handoffs, 'KV handoff')}, "
        f"{counted(sum(one.relocations for one in report.conversations), 'relocation')} in {report.elapsed_s:.0f} s."
    )
    if report.check_elapsed_s is not None:
        text += f" The same on one engine: {report.check_elapsed_s:.0f} s."
    return text + (
        "\nThe tools ran for real on the files; which tool runs when is a fixed plan, because a model of this size cannot choose."
    )
