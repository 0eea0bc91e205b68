"""One look at a door: what `conserve top` shows, as values.

Promises: works against both doors and needs no GPU; whatever the door does not tell is None. Leaves to others: showing it.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ._ask import ask, base_of

__all__ = ["Bounds", "Look", "TierRow", "View", "WorkerRow", "look", "quantile", "view"]

_Series: TypeAlias = tuple[str, frozenset[tuple[str, str]]]
_LINE: Final = re.compile(r'^(\w+)(?:\{((?:[^"}]|"(?:\\.|[^"\\])*")*)\})? (\S+)$', re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
# What a time is at least and at most, in seconds.
Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Look:
    """What a door told at one moment."""

    at_s: float
    fleet: Mapping[str, Any]
    energy: Mapping[str, Any]
    series: Mapping[_Series, float]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker. Rates are between two looks."""

    name: str
    role: str
    tier: str
    health: str
    kv_booked: int
    kv_reported: int | None
    kv_blocks: int | None
    pins: int
    running: int
    queued_tokens: int
    reported_waiting: int | None
    tokens_per_s: float | None
    power_w: float | None
    j_per_token: float | None


@dataclass(frozen=True, slots=True)
class TierRow:
    """What the clients of one tier felt. Of times, which are in seconds, the bounds are known."""

    tier: str
    turns: int
    ttft_p50_s: Bounds | None
    ttft_p95_s: Bounds | None
    ttfet_p50_s: Bounds | None
    ttfet_p95_s: Bounds | None
    wait_p95_s: Bounds | None
    tbt_p95_s: Bounds | None
    good_turns: float | None
    goodput_tokens_per_s: float | None
    j_per_token: float | None


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown. `span_s` is the time that rates are over, `times_span_s` that of the times; None: the start."""

    span_s: float | None
    times_span_s: float | None
    conversations: int
    in_flight: int
    waiting: int
    waiting_tail: int
    draining: bool
    workers: tuple[WorkerRow, ...]
    tiers: tuple[TierRow, ...]
    away: tuple[str, ...]
    power_w: float | None
    j_per_output_token: float | None
    no_counter: Mapping[str, str] = field(default_factory=dict)


def look(url: str, *, key: str | None = None) -> Look:
    """Ask the door at `url`. Raises UnreachableError."""
    base = base_of(url)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    fleet = ask(base, "/v1/fleet", headers).json
    text = ask(base, "/metrics", headers).body.decode("utf-8", "replace")
    energy = ask(base, "/v1/energy", headers).json
    return Look(time.monotonic(), fleet, energy, _series(text))


def _series(text: str) -> dict[_Series, float]:
    """The samples of a Prometheus page."""
    found: dict[_Series, float] = {}
    for name, labels, value in _LINE.findall(text):
        try:
            found[name, frozenset(_LABEL.findall(labels))] = float(value)
        except ValueError:
            continue
    return found


def quantile(share: float, buckets: Mapping[float, float], sum_s: float | None = None) -> Bounds | None:
    """Between what a quantile of a cumulative histogram lies, `le` to count; None without samples.

    These are the bounds of its bucket, and narrower where `sum_s`, the samples together, leaves less: of one sample it is the sample.
    """
    total = buckets.get(math.inf, 0.0)
    if total <= 0:
        return None
    rank, low, before, shorter_s, at_most_s = max(math.ceil(share * total), 1), 0.0, 0.0, 0.0, 0.0
    steps = sorted(buckets.items())
    for place, (high, count) in enumerate(steps):
        if count >= rank:
            if sum_s is None:
                return low, high
            # Those from it on are no shorter than it, those of its bucket before it no longer.
            most = (sum_s - shorter_s - (rank - 1 - before) * low) / (total - rank + 1)
            for (_, under), (bound, upto) in itertools.pairwise([(low, rank), *steps[place:]]):
                at_most_s += (upto - under) * bound if upto > under else 0.0
            least = (sum_s - at_most_s) / (rank - before)
            return max(low, min(least, high)), max(low, min(high, most))
        shorter_s += (count - before) * low
        at_most_s += (count - before) * high
        low, before = high, count
    return low, math.inf


def view(now: Look, before: Look | None = None, times_since: Look | None = None) -> View:
    """What to show: rates since `before`, times since `times_since` (the router's start without one)."""
    span_s = None if before is None else now.at_s - before.at_s
    workers = tuple(_worker(row, now, before, span_s) for row in now.fleet["workers"])
    tiers = dict.fromkeys(
        dict(labels)["tier"] for name, labels in now.series if name == "conserve_slo_turns_total"
    )
    zones = now.energy.get("zones", {}).values()
    powers = [zone["power_w"] for zone in zones if zone["power_w"] is not None]
    return View(
        span_s=span_s,
        times_span_s=None if times_since is None else now.at_s - times_since.at_s,
        conversations=now.fleet["conversations"],
        in_flight=now.fleet["in_flight"],
        waiting=now.fleet["waiting"],
        waiting_tail=now.fleet["waiting_tail"],
        draining=now.fleet["draining"],
        workers=workers,
        tiers=tuple(_tier(tier, now, times_since, before, span_s) for tier in tiers),
        away=tuple(f"{each['name']}: {each['error'] or 'not asked yet'}" for each in now.fleet["away"]),
        power_w=sum(powers) if powers else None,
        j_per_output_token=now.energy.get("fleet", {}).get("j_per_output_token"),
        no_counter=now.energy.get("no_counter", {}),
    )


def _worker(row: Mapping[str, Any], now: Look, before: Look | None, span_s: float | None) -> WorkerRow:
    usage = now.energy.get("workers", {}).get(row["name"], {})
    reported = None
    if row["kv_usage"] is not None and row["kv_blocks"]:
        reported = round(row["kv_usage"] * row["kv_blocks"])
    rate = None
    earlier = (
        None
        if before is None
        else next((old for old in before.fleet["workers"] if old["id"] == row["id"]), None)
    )
    if earlier is not None and span_s:
        handled = (each["prompt_tokens"] + each["output_tokens"] for each in (row, earlier))
        rate = (next(handled) - next(handled)) / span_s
    return WorkerRow(
        name=row["name"],
        role=row["role"],
        tier=row["tier"] or "default",
        health="draining" if row["draining"] else row["health"],
        kv_booked=row["booked_blocks"],
        kv_reported=reported,
        kv_blocks=row["kv_blocks"],
        pins=row["conversations"],
        running=row["prefilling"] + row["decoding"],
        queued_tokens=row["queued_tokens"],
        reported_waiting=row["reported_waiting"],
        tokens_per_s=rate,
        power_w=_power(row["name"], now.energy),
        j_per_token=usage.get("j_per_token"),
    )


def _power(worker: str, energy: Mapping[str, Any]) -> float | None:
    """The power of the worker's meters; of one that it shares, its part by number."""
    parts = [
        zone["power_w"] / len(zone["workers"])
        for zone in energy.get("zones", {}).values()
        if worker in zone["workers"] and zone["power_w"] is not None
    ]
    return sum(parts) if parts else None


def _tier(tier: str, now: Look, since: Look | None, before: Look | None, span_s: float | None) -> TierRow:
    def times(name: str, share: float) -> Bounds | None:
        return quantile(share, _buckets(name, tier, now, since), _sum(name, tier, now, since))

    good, missed = (_change("conserve_slo_turns_total", tier, met, now, since) for met in ("yes", "no"))
    tokens = _change("conserve_slo_output_tokens_total", tier, "yes", now, before)
    return TierRow(
        tier=tier,
        turns=int(good + missed),
        ttft_p50_s=times("conserve_ttft_seconds", 0.5),
        ttft_p95_s=times("conserve_ttft_seconds", 0.95),
        ttfet_p50_s=times("conserve_ttfet_seconds", 0.5),
        ttfet_p95_s=times("conserve_ttfet_seconds", 0.95),
        wait_p95_s=times("conserve_queue_wait_seconds", 0.95),
        tbt_p95_s=times("conserve_tbt_seconds", 0.95),
        good_turns=good / (good + missed) if good + missed else None,
        goodput_tokens_per_s=tokens / span_s if span_s else None,
        j_per_token=now.energy.get("tiers", {}).get(tier, {}).get("j_per_token"),
    )


def _change(name: str, tier: str, met: str, now: Look, since: Look | None) -> float:
    series = name, frozenset({("tier", tier), ("met", met)})
    return now.series.get(series, 0.0) - (0.0 if since is None else since.series.get(series, 0.0))


def _buckets(name: str, tier: str, now: Look, since: Look | None) -> dict[float, float]:
    """A histogram of one tier, all kinds of turns together, less what there was at `since`."""
    found: dict[float, float] = {}
    for sign, labels, count in _samples(f"{name}_bucket", tier, now, since):
        bound = float(labels["le"])
        found[bound] = found.get(bound, 0.0) + sign * count
    return found


def _sum(name: str, tier: str, now: Look, since: Look | None) -> float | None:
    """The sum of what it counted, where the door tells it."""
    sums = [sign * total for sign, _, total in _samples(f"{name}_sum", tier, now, since)]
    return sum(sums) if sums else None


def _samples(
    name: str, tier: str, now: Look, since: Look | None
) -> Iterator[tuple[int, dict[str, str], float]]:
    """A metric of one tier: what to count it as, its labels and its value."""
    for sign, series in ((1, now.series), (-1, {} if since is None else since.series)):
        for (found, labels), value in series.items():
            if found == name and ("tier", tier) in labels:
                yield sign, dict(labels), value
