"""Whose energy it was: each look at a meter is split into prefill, decode and idle of the workers behind it.

Promises: whole microjoules, and nothing is lost or made up: the shares of one look add up to what the meter said, whatever
the router knew. The formula and what it cannot know: docs/design/energy.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Account", "Share", "Usage", "Zone", "split"]

_SMOOTHING: Final = 0.2


@dataclass(frozen=True, slots=True)
class Share:
    """Microjoules of one worker."""

    prefill_uj: int
    decode_uj: int
    idle_uj: int


@dataclass(slots=True)
class Usage:
    """Microjoules of one worker so far, and the tokens it handled meanwhile."""

    prefill_uj: int = 0
    decode_uj: int = 0
    idle_uj: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def total_uj(self) -> int:
        """All three."""
        return self.prefill_uj + self.decode_uj + self.idle_uj

    @property
    def tokens(self) -> int:
        """Prompt tokens computed and tokens generated."""
        return self.prompt_tokens + self.output_tokens

    def add(self, other: Usage) -> None:
        """Take another account in."""
        self.prefill_uj += other.prefill_uj
        self.decode_uj += other.decode_uj
        self.idle_uj += other.idle_uj
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens


def split(
    energy_uj: int, span_s: float, work_s: Mapping[str, tuple[float, float]], *, idle_w: float | None
) -> dict[str, Share]:
    """Shares of `energy_uj`, used in `span_s`, for workers by their turn-seconds of prefill and decode in that time.

    The time in which no turn ran is paid at `idle_w` (the mean power if that is None) and shared evenly; the rest is
    shared by turn-seconds.
    """
    seconds = [max(0.0, each) for pair in work_s.values() for each in pair]
    ran_s = sum(seconds)
    rest_s = max(0.0, span_s - ran_s)
    if ran_s == 0:
        idle_uj = energy_uj
    elif rest_s == 0 or span_s <= 0:
        idle_uj = 0
    else:
        rate_w = energy_uj / span_s / 1e6 if idle_w is None else idle_w
        idle_uj = min(energy_uj, round(rate_w * rest_s * 1e6))
    busy = _shared(energy_uj - idle_uj, seconds)
    idle = _shared(idle_uj, [1.0] * len(work_s))
    return {
        name: Share(busy[2 * place], busy[2 * place + 1], idle[place]) for place, name in enumerate(work_s)
    }


def _shared(amount: int, weights: Sequence[float]) -> list[int]:
    """`amount` in whole parts in proportion to `weights`; nothing for anybody if all are 0."""
    total = sum(weights)
    parts: list[int] = []
    reached, given = 0.0, 0
    for weight in weights:
        reached += weight
        # Where each part ends, rounded: the parts between the ends add up to the last end.
        end = amount if reached >= total else min(amount, round(amount * (reached / total)))
        parts.append(end - given if total > 0 else 0)
        given = end
    return parts


@dataclass(slots=True)
class Zone:
    """One meter: the workers behind it, all that it said, and how it is now."""

    workers: tuple[str, ...]
    energy_uj: int = 0
    power_w: float | None = None
    idle_w: float | None = None
    error: str | None = None


@dataclass(slots=True)
class Account:
    """The totals of every zone and worker. Not for several threads at once."""

    zones: dict[str, Zone]
    tiers: Mapping[str, str]
    """The tier of each worker."""
    workers: dict[str, Usage] = field(init=False)

    def __post_init__(self) -> None:
        self.workers = {name: Usage() for zone in self.zones.values() for name in zone.workers}

    def book(
        self, key: str, energy_uj: int, span_s: float, work_s: Mapping[str, tuple[float, float]]
    ) -> dict[str, Share]:
        """Take in what a zone's meter said; the shares of its workers. Workers not in `work_s` did nothing."""
        zone = self.zones[key]
        own = {name: work_s.get(name, (0.0, 0.0)) for name in zone.workers}
        shares = split(energy_uj, span_s, own, idle_w=zone.idle_w)
        zone.energy_uj += energy_uj
        zone.error = None
        if span_s > 0:
            zone.power_w = energy_uj / span_s / 1e6
            if not any(prefill_s > 0 or decode_s > 0 for prefill_s, decode_s in own.values()):
                old_w = zone.power_w if zone.idle_w is None else zone.idle_w
                zone.idle_w = old_w + _SMOOTHING * (zone.power_w - old_w)
        for name, share in shares.items():
            usage = self.workers[name]
            usage.prefill_uj += share.prefill_uj
            usage.decode_uj += share.decode_uj
            usage.idle_uj += share.idle_uj
        return shares

    def failed(self, key: str, error: str) -> None:
        """A zone's meter could not be read."""
        zone = self.zones[key]
        zone.power_w, zone.error = None, error

    def of_tier(self, tier: str) -> Usage:
        """All workers of one tier together."""
        return self._sum(name for name in self.workers if self.tiers[name] == tier)

    def of_fleet(self) -> Usage:
        """All workers together."""
        return self._sum(self.workers)

    def _sum(self, names: Iterable[str]) -> Usage:
        total = Usage()
        for name in names:
            total.add(self.workers[name])
        return total
