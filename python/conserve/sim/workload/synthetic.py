"""Generators fitted to the recorded traces: the same marginals, no recorded record.

Each quantity is drawn by inverting a distribution function that is linear in the logarithm between the recorded
percentiles 5, 10, 25, 50, 75, 90, 95 and 99 (and goes no further than those at the ends). Draws are independent: what a
trace has of order and correlation (resets, bursts of short turns, long sessions with long answers) is lost, so a result on
a generated workload is not one on the trace it is named after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from .record import Conversation, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["FITTED", "Fit", "generate"]

_LEVELS: Final = np.array([0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99])
_FLOOR: Final = 0.01
_SYNTHETIC_STREAM: Final = 0x5F17


@dataclass(frozen=True, slots=True)
class Fit:
    """Percentiles 5, 10, 25, 50, 75, 90, 95, 99 of one trace: turns, tokens, and seconds between turns."""

    turns: tuple[float, ...]
    first: tuple[float, ...]
    append: tuple[float, ...]
    output: tuple[float, ...]
    gap_s: tuple[float, ...] | None
    """`None`: the trace records no gaps and none is made up."""
    shared_prefix_tokens: int = 0
    visible_share: float = 0.0
    """Share of the turns before the last that show text to the user."""
    reset_share: float = 0.0
    """Share of the later turns that keep only the shared prefix of the context."""


FITTED: Final[Mapping[str, Fit]] = {
    "swebench": Fit(
        turns=(5, 5, 5, 5, 5, 5, 5, 5),
        first=(12242, 13546, 14866, 15890, 16482, 16889, 17293, 18755),
        append=(67, 67, 67, 67, 67, 67, 67, 69),
        output=(39, 41, 53, 121, 280, 529, 799, 3896),
        gap_s=None,
    ),
    "claude-code-fresh": Fit(
        turns=(7, 10, 28, 66, 119, 198, 250, 349),
        first=(11744, 13582, 16901, 19074, 21390, 30009, 43569, 56922),
        append=(1, 1, 39, 281, 1148, 3420, 7189, 51531),
        output=(87, 103, 138, 214, 402, 805, 1346, 3513),
        gap_s=(0.01, 0.01, 0.17, 2.28, 21.7, 138, 374, 3116),
        shared_prefix_tokens=15_100,
        visible_share=0.15,
        reset_share=0.024,
    ),
    "claude-code-resumed": Fit(
        turns=(4, 5, 9, 23, 40, 69, 96, 191),
        first=(65167, 67810, 93189, 132684, 257670, 426405, 558261, 827065),
        append=(1, 18, 126, 376, 1094, 4993, 8063, 86416),
        output=(90, 107, 144, 246, 526, 1092, 1736, 3553),
        gap_s=(0.01, 0.01, 0.66, 6.0, 50.9, 242, 637, 2613),
        shared_prefix_tokens=15_100,
        visible_share=0.15,
        reset_share=0.022,
    ),
    "claude-code-subagents": Fit(
        turns=(4, 5, 7, 10, 12, 15, 17, 24),
        first=(9080, 9486, 9862, 10332, 11678, 11732, 11752, 14397),
        append=(142, 289, 783, 2410, 5780, 15292, 29198, 65500),
        output=(115, 132, 175, 235, 305, 785, 3023, 4561),
        gap_s=(0.01, 0.01, 0.01, 0.52, 2.09, 8.44, 34.2, 66.2),
        shared_prefix_tokens=9_041,
    ),
    "mini-swe": Fit(
        turns=(6, 8, 11, 22, 30, 30, 30, 30),
        first=(1166, 1252, 1306, 1434, 1987, 2521, 2951, 3271),
        append=(21, 21, 21, 39, 211, 841, 2497, 3587),
        output=(58, 65, 82, 100, 132, 182, 231, 296),
        gap_s=None,
    ),
    "swe-agent": Fit(
        turns=(4, 4, 6, 11, 12, 15, 18, 20),
        first=(1007, 1153, 1426, 1925, 2168, 2684, 7063, 10192),
        append=(37, 42, 69, 161, 468, 1305, 2019, 2635),
        output=(21, 27, 51, 81, 119, 158, 207, 550),
        gap_s=(0.12, 0.13, 0.22, 0.24, 0.38, 0.77, 0.91, 1.62),
    ),
    "tau-bench": Fit(
        turns=(5, 5, 7, 11, 17, 20, 23, 30),
        first=(3775, 3776, 3778, 3784, 3792, 3802, 3804, 3812),
        append=(6, 12, 24, 37, 284, 371, 421, 1358),
        output=(29, 36, 55, 64, 98, 178, 225, 338),
        gap_s=None,
        shared_prefix_tokens=3_758,
        visible_share=0.5,
    ),
    "mooncake-chat": Fit(
        turns=(1, 1, 1, 1, 2, 3, 4, 7),
        first=(898, 909, 1526, 6210, 14693, 26795, 39264, 88260),
        append=(1, 5, 10, 29, 384, 4195, 7091, 16289),
        output=(10, 24, 152, 353, 475, 606, 716, 1185),
        gap_s=(30, 42, 75, 132, 270, 502, 800, 1517),
        visible_share=1.0,
    ),
}
"""Percentiles of the normalised traces. Mooncake records start-to-start intervals, used here as gaps."""


def generate(name: str, count: int, *, seed: int) -> Iterator[Conversation]:
    """`count` conversations like those of the trace `name`, the same for the same seed.

    Raises:
        KeyError: no fit has that name.
    """
    fit = FITTED[name]
    stream = np.random.default_rng((_SYNTHETIC_STREAM, seed))
    for index in range(count):
        yield Conversation(
            id=f"{name}-{seed}-{index}",
            turns=tuple(_turns(fit, stream)),
            shared_prefix_tokens=fit.shared_prefix_tokens,
            resumed=name == "claude-code-resumed",
        )


def _turns(fit: Fit, stream: np.random.Generator) -> Iterator[TurnRecord]:
    count = max(1, round(_draw(fit.turns, stream)))
    context = 0
    for index in range(count):
        last = index == count - 1
        append = max(1, round(_draw(fit.append if index else fit.first, stream)))
        # Every draw is made, used or not: a changed option must not shift the draws behind it.
        gap = _draw(fit.gap_s, stream) if fit.gap_s is not None else 0.0
        chance, shown = stream.random(2)
        reset = index > 0 and chance < fit.reset_share and context > fit.shared_prefix_tokens
        reuse = min(fit.shared_prefix_tokens, context) if reset else context
        turn = TurnRecord(
            append_tokens=append,
            output_tokens=max(1, round(_draw(fit.output, stream))),
            reuse_tokens=reuse,
            gap_s=gap if index else 0.0,
            visible=last or bool(shown < fit.visible_share),
            reset=reset,
        )
        context = turn.context_tokens
        yield turn


def _draw(percentiles: tuple[float, ...], stream: np.random.Generator) -> float:
    heights = np.log(np.maximum(percentiles, _FLOOR))
    return float(np.exp(np.interp(stream.random(), _LEVELS, heights)))
