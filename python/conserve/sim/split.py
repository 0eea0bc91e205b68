"""What the time from a conversation's arrival to its first answer was spent on, on average and by the slowest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from conserve._core import SimResult

    Floats = NDArray[np.float64]

__all__ = ["PARTS", "Split", "parts_of", "split"]

PARTS: Final = {
    "tool": "tools",
    "network": "way from the client",
    "slept": "asleep for a flip's work",
    "line": "admission line",
    "engine_queue": "queue where the prompt is computed",
    "compute": "computing prompts",
    "handoff_wait": "room on the decoder, free link",
    "transfer": "transfer",
    "decoder_queue": "queue on the decoder, KV there",
    "decode": "decoding",
}
"""The parts in the order of a turn, in words. Together they are the whole time."""


@dataclass(frozen=True, slots=True)
class Split:
    """Means by part; those of a group add up to its mean time."""

    mean: dict[str, float]
    """Of all who were answered."""
    tail: dict[str, float]
    """Of those whose time is at or above the 95th percentile."""


def parts_of(result: SimResult) -> dict[str, Floats]:
    """Seconds of each conversation by part, in the order of the workload; NaN without an answer."""
    told = result.conversations()
    return {part: np.asarray(told[f"ttfet_{part}_s"]) for part in PARTS}  # type: ignore[literal-required]


def split(parts: Mapping[str, Floats], times: Floats) -> Split:
    """The means of `parts`, which add up to `times` conversation by conversation; NaN if nobody was answered."""
    known = np.flatnonzero(~np.isnan(times))
    if not known.size:
        return Split(dict.fromkeys(parts, np.nan), dict.fromkeys(parts, np.nan))
    slowest = known[times[known] >= np.percentile(times[known], 95)]
    mean, tail = (
        {part: float(values[of].mean()) for part, values in parts.items()} for of in (known, slowest)
    )
    return Split(mean, tail)
