"""The report as tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .report import Report, placements


def show(report: Report, console: Console) -> None:
    """Print the conversations, the fleet, and the verdict of `--check`."""
    console.print(conversations_table(report))
    console.print(workers_table(report))
    console.print(_summary(report))
    for problem in report.problems:
        console.print(Text(f"✗ {problem}", style="bold red"))
    if report.checked and not report.problems:
        console.print(
            Text(
                f"✓ all {len(report.conversations)} conversations: one handoff, one decoder, nothing computed twice beyond "
                "partial blocks, and every text equal to a single engine's",
                style="bold green",
            )
        )


def conversations_table(report: Report) -> Table:
    """One row for each conversation."""
    table = Table(title="Conversations", title_justify="left")
    table.add_column("conversation")
    table.add_column("file", overflow="ellipsis", no_wrap=True, max_width=34)
    table.add_column("turns", justify="right")
    table.add_column("decoder")
    table.add_column("handoffs", justify="right")
    table.add_column("TTFET s", justify="right")
    table.add_column("new", justify="right")
    table.add_column("resident", justify="right")
    table.add_column("recomputed", justify="right")
    table.add_column("partial", justify="right")
    for one in report.conversations:
        table.add_row(
            one.agent.label,
            one.agent.plan.path,
            str(len(one.turns)),
            one.decoder,
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
    table = Table(title="Workers (prompt tokens by source, from their /metrics)", title_justify="left")
    table.add_column("worker")
    table.add_column("role")
    for name in ("conversations", "computed", "resident", "pulled", "generated"):
        table.add_column(name, justify="right")
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
        )
    return table


def _summary(report: Report) -> str:
    handoffs = sum(one.handoffs for one in report.conversations)
    turns = sum(len(one.turns) for one in report.conversations)
    text = (
        f"{len(report.conversations)} conversations, {turns} turns, {handoffs} KV handoffs, "
        f"{sum(one.relocations for one in report.conversations)} relocations in {report.elapsed_s:.0f} s."
    )
    if report.check_elapsed_s is not None:
        text += f" The same on one engine: {report.check_elapsed_s:.0f} s."
    return text + (
        "\nThe tools ran for real on the files; which tool runs when is a fixed plan, because a model of this size cannot choose."
    )
