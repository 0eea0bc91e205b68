"""What `conserve top` shows, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from conserve._counted import counted

from ._fit import Column, fitted
from ._top_look import TierRow, View, WorkerRow

__all__ = ["tables"]

_T = TypeVar("_T")
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


def tables(url: str, shown: View, *, width: int, trouble: str | None = None) -> RenderableType:
    """Head, workers, tiers, and what is wrong, for a terminal of `width` columns."""
    workers = fitted(
        (
            Column("worker", [row.name for row in shown.workers]),
            Column("role", [row.role for row in shown.workers]),
            Column("tier", [row.tier for row in shown.workers]),
            Column("health", [Text(row.health, _HEALTH.get(row.health, "")) for row in shown.workers]),
        ),
        [Column(title, [show(row) for row in shown.workers]) for title, show in _COLUMNS],
        width=width,
    )
    felt = fitted(
        [Column("tier", [tier.tier for tier in shown.tiers])],
        [Column(title, [show(tier) for tier in shown.tiers]) for title, show in _FELT],
        width=width,
    )
    return Group(Text(_head(url, shown)), *workers, *felt, *(Text(line) for line in _notes(shown, trouble)))


def _head(url: str, shown: View) -> str:
    words = [
        url,
        counted(shown.conversations, "conversation"),
        f"{counted(shown.in_flight, 'request')} under way",
        f"in line: {shown.waiting} new, {shown.waiting_tail} later turns",
    ]
    if shown.power_w is not None:
        words.append(f"{shown.power_w:.0f} W")
    if shown.j_per_output_token is not None:
        words.append(f"{shown.j_per_output_token:.3g} J for each output token")
    if shown.draining:
        words.append("SHUTTING DOWN")
    return " · ".join(words)


def _notes(shown: View, trouble: str | None) -> list[str]:
    span = (
        "since the router's start"
        if shown.times_span_s is None
        else f"of the last {shown.times_span_s:.0f} s"
    )
    notes = [
        f"times and good turns {span}; W of a shared meter in equal parts; tokens: prefilled and generated"
    ]
    notes += [f"away: {each}" for each in shown.away]
    reasons: dict[str, list[str]] = {}
    for zone, why in shown.no_counter.items():
        reasons.setdefault(why, []).append(zone)
    notes += [f"no energy counter ({', '.join(zones)}): {why}" for why, zones in reasons.items()]
    if trouble is not None:
        notes.append(f"{trouble}; what is shown is old")
    return notes


def _shown(value: _T | None, show: Callable[[_T], str]) -> str:
    return "-" if value is None else show(value)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return "> 600 s"
    if seconds < 0.001:
        return "< 1 ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
