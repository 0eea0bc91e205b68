"""What `conserve top` shows, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from conserve._counted import counted
from conserve._trimmed import Trimmed

from ._fit import Column, fitted
from ._top_look import Bounds, TierRow, View, WorkerRow

__all__ = ["tables"]

_T = TypeVar("_T")
_Row = TypeVar("_Row", WorkerRow, TierRow)
_HEALTH: Final = {"ready": "green", "draining": "yellow", "suspect": "yellow", "lost": "red"}
_COLUMNS: Final[tuple[tuple[str, Callable[[WorkerRow], str]], ...]] = (
    ("booked", lambda row: str(row.kv_booked) if row.role != "prefiller" else "-"),
    ("reported", lambda row: _shown(row.kv_reported, str)),
    ("blocks", lambda row: _shown(row.kv_blocks, str)),
    ("pins", lambda row: str(row.pins)),
    ("running", lambda row: str(row.running)),
    (
        "queue",
        lambda row: (
            f"{row.queued_tokens} tok" if row.role != "decoder" else _shown(row.reported_waiting, str)
        ),
    ),
    ("tok/s", lambda row: _shown(row.tokens_per_s, "{:.0f}".format)),
    ("W", lambda row: _shown(row.power_w, "{:.0f}".format)),
    ("J/tok", lambda row: _shown(row.j_per_token, "{:.3g}".format)),
)
_FELT: Final[tuple[tuple[str, Callable[[TierRow], str]], ...]] = (
    ("turns", lambda row: str(row.turns)),
    ("TTFT p50", lambda row: _span(row.ttft_p50_s)),
    ("p95", lambda row: _span(row.ttft_p95_s)),
    ("TTFET p50", lambda row: _span(row.ttfet_p50_s)),
    ("p95", lambda row: _span(row.ttfet_p95_s)),
    ("in line p95", lambda row: _span(row.wait_p95_s)),
    ("TBT p95", lambda row: _span(row.tbt_p95_s)),
    ("good turns", lambda row: _shown(row.good_turns, "{:.0%}".format)),
    ("goodput tok/s", lambda row: _shown(row.goodput_tokens_per_s, "{:.0f}".format)),
    ("J/tok", lambda row: _shown(row.j_per_token, "{:.3g}".format)),
)


def tables(
    url: str, shown: View, *, width: int, height: int | None = None, trouble: str | None = None
) -> RenderableType:
    """Head, workers, tiers, and what is wrong, for a terminal of `width` columns.

    With `height`, no longer than so many lines: then first the energy counters that there are not are left out.
    """
    workers = fitted(
        (
            Column("worker", [row.name for row in shown.workers]),
            Column("role", [row.role for row in shown.workers]),
            Column("tier", [row.tier for row in shown.workers]),
            Column("health", [Text(row.health, _HEALTH.get(row.health, "")) for row in shown.workers]),
        ),
        _told(_COLUMNS, shown.workers),
        width=width,
    )
    felt = fitted(
        [Column("tier", [tier.tier for tier in shown.tiers])], _told(_FELT, shown.tiers), width=width
    )
    if not shown.workers:
        workers = []
    parts: list[RenderableType] = [Text(_head(url, shown))]
    if trouble is not None:
        parts.append(Text(f"{trouble}; what is shown is old"))
    for table in (*workers, *felt):
        table.show_edge = False
        parts += [Text(), table]
    parts += [Text(), *map(Text, _notes(shown))]
    whole = Group(*parts, *map(Text, _no_counter(shown)))
    fits = height is None or len(Console(width=width).render_lines(whole)) <= height
    return Trimmed(whole) if fits else Trimmed(*parts, height=height)


def _told(columns: Sequence[tuple[str, Callable[[_Row], str]]], rows: Sequence[_Row]) -> list[Column]:
    """The columns of which anything is known."""
    made = [Column(title, [show(row) for row in rows]) for title, show in columns]
    return [column for column in made if set(column.cells) - {"-"}]


def _head(url: str, shown: View) -> str:
    words = [
        url,
        counted(shown.conversations, "conversation"),
        f"{shown.in_flight} under way",
        f"in line: {shown.waiting} new, {shown.waiting_tail} later",
    ]
    if shown.power_w is not None:
        words.append(f"{shown.power_w:.0f} W")
    if shown.j_per_output_token is not None:
        words.append(f"{shown.j_per_output_token:.3g} J for each output token")
    if shown.draining:
        words.append("SHUTTING DOWN")
    return " · ".join(words)


def _notes(shown: View) -> list[str]:
    span = (
        "since the router's start"
        if shown.times_span_s is None
        else f"of the last {shown.times_span_s:.0f} s"
    )
    notes = [
        f"times and good turns {span}, waits in line included; of times the bounds are known",
        "tok/s: generated tokens as their streams flow, prompts once they are computed",
    ]
    if shown.power_w is not None:
        notes.append("W of a shared meter in equal parts")
    if not shown.workers:
        notes.insert(0, "no worker has joined")
    return notes + [f"away: {each}" for each in shown.away]


def _no_counter(shown: View) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for zone, why in shown.no_counter.items():
        reasons.setdefault(why, []).append(zone)
    return [f"no energy counter ({', '.join(zones)}): {why}" for why, zones in reasons.items()]


def _shown(value: _T | None, show: Callable[[_T], str]) -> str:
    return "-" if value is None else show(value)


def _span(bounds: Bounds | None) -> str:
    if bounds is None:
        return "-"
    low, high = bounds
    unit, scale = ("ms", 1000) if high < 1 else ("s", 1)
    least, most = (f"{seconds * scale:.3g}" for seconds in bounds)
    if math.isinf(high):
        return f"> {least} s"
    if least == most:
        return f"{most} {unit}"
    return f"< {most} {unit}" if low == 0 else f"{least}-{most} {unit}"
