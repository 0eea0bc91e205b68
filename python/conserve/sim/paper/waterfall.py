"""From the paper's method to the honest one, a switch at a time, in two orders.

`e` comes before `a` and `b` in both: a turn cannot be computed on a prefiller that is not in the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .causes import causes
from .experiments import SATURATED_PER_S, cell_of
from .mode import SWITCHES, Setting
from .results import Json, Sample, plain, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .cells import Cell, Store

__all__ = ["ORDERS", "Waterfall"]

ORDERS: Final = ("ebacdfg", "gfdceba")
_SYSTEMS: Final = ("strict", "ampd-paper", "collocated")


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Both orders, at saturation."""

    seeds: int
    conversations: int
    baseline: str
    """What routes as AMPD once switch a is off."""

    def _setting(self, system: str, off: str, seed: int) -> Setting:
        # Sorted: the same switches in another order are the same run.
        return Setting(
            system,
            SATURATED_PER_S,
            seed,
            off="".join(sorted(off)),
            conversations=self.conversations,
            baseline=self.baseline,
        )

    def cells(self) -> Iterator[Cell]:
        """Every run that is needed; some more than once."""
        for order in ORDERS:
            for switched in range(len(order) + 1):
                for system in _SYSTEMS:
                    for seed in range(1, self.seeds + 1):
                        yield cell_of(self._setting(system, order[:switched], seed))

    def _sample(self, store: Store, system: str, off: str) -> Sample:
        return sample(store, lambda seed: cell_of(self._setting(system, off, seed)), self.seeds)

    def steps(self, store: Store) -> list[Json]:
        """Each order from all switches on to all off."""
        return [
            {
                "order": order,
                "steps": [self._step(store, order[:switched]) for switched in range(len(order) + 1)],
            }
            for order in ORDERS
        ]

    def causes(self, store: Store) -> list[Json]:
        """Where the difference comes from once all switches are off."""
        ours, base, _ = (self._sample(store, system, SWITCHES) for system in _SYSTEMS)
        return causes(ours, base)

    def _step(self, store: Store, off: str) -> Json:
        ours, base, fair = (self._sample(store, system, off) for system in _SYSTEMS)
        return {
            "off": off,
            "ttfet": plain(ours.change(base, "ttfet_p95_x")),
            "ttfet_collocated": plain(ours.change(fair, "ttfet_p95_x")),
            "energy": plain(ours.change(base, "tokens_per_j")),
            "ours_p95_x": plain(ours.mean("ttfet_p95_x")),
            "base_p95_x": plain(base.mean("ttfet_p95_x")),
            "ours_missed": plain(ours.mean("ttfet_missed")),
            "base_missed": plain(base.mean("ttfet_missed")),
            "collocated_missed": plain(fair.mean("ttfet_missed")),
            "ours_tokens_per_j": plain(ours.mean("tokens_per_j")),
            "unstable": max(ours.unstable, base.unstable, fair.unstable),
        }
