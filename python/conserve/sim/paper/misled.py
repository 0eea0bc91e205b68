"""What errors cost in full mode: AMPD under each kind of misprediction, ConServe under stale news of the fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conserve.sim.stats import convexity

from .results import Json, interval_of, plain
from .trials import Trials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .cells import Cell, Store

__all__ = ["ERRORS", "KNOBS", "MEASURES", "Misled"]

KNOBS: Final = ("flip", "toremote", "noise", "length")
ERRORS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
MEASURES: Final = ("ttfet_own_p95_s", "attained_2x", "tokens_per_j")
WORKLOAD: Final = "swe-agent"
LOAD: Final = 0.7
_STALE_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0)


def _ampd(knob: str, error: float) -> str:
    return f"ampd({knob}={error:g})" if error else "ampd"


def _strict(stale_s: float) -> str:
    return f"strict(stale_s={stale_s:g})" if stale_s else "strict"


@dataclass(frozen=True, slots=True)
class Misled:
    """Each kind of error at each size, on one workload."""

    seeds: int
    conversations: int
    recorded: bool

    @property
    def _trials(self) -> Trials:
        misled = [_ampd(knob, error) for knob in KNOBS for error in ERRORS]
        stale = [_strict(seconds) for seconds in _STALE_S]
        policies = tuple(dict.fromkeys(["collocated", *misled, *stale]))
        return Trials((WORKLOAD,), policies, (LOAD,), self.seeds, self.conversations, self.recorded)

    def probes(self) -> Iterator[Cell]:
        """The run that says what load 1 is."""
        return self._trials.probes()

    def cells(self, store: Store) -> Iterator[Cell]:
        """Every run."""
        return self._trials.cells(store)

    def gather(self, store: Store) -> Json:
        """For each kind of error and measure: the values, and how straight they lie."""
        rows = {str(row["policy"]): row for row in self._trials.rows(store)}
        stale = {f"{seconds:g}": rows[_strict(seconds)] for seconds in _STALE_S}
        return {
            "workload": WORKLOAD,
            "load": LOAD,
            "ampd": [_line(knob, measure, rows) for knob in KNOBS for measure in MEASURES],
            "strict": [
                {"stale_s": seconds, **{measure: row[measure] for measure in MEASURES}}
                for seconds, row in stale.items()
            ],
        }


def _line(knob: str, measure: str, rows: dict[str, Json]) -> Json:
    found = [rows[_ampd(knob, error)][measure] for error in ERRORS]
    means = [interval_of(one).mean for one in found]
    told: Json = {"knob": knob, "measure": measure, "values": found, "r2": None, "bend": None}
    if not any(map(math.isnan, means)):
        fit, bend = convexity(ERRORS, means)
        told |= {"r2": fit, "bend": plain(bend)}
    return told
