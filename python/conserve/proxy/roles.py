"""How many workers only compute prompts, and how many should: a line in the log when either changes, and what `/v1/fleet` says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from conserve._core import Router, Snapshot

__all__ = ["RoleLog", "told"]

logger = logging.getLogger(__name__)

_TERMS: Final = (
    "prefillers",
    "prefillers_now",
    "workers",
    "gap_ms",
    "gap_now_ms",
    "gaps_ms",
    "step_ms",
    "step_ms_per_turn",
    "prompt_workers",
    "movable_workers",
    "tokens_per_s",
    "held_workers",
)


class RoleLog:
    """Remembers what it said last."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._said: tuple[int, int | None] | None = None

    def look(self) -> None:
        """Say what changed since the last look; nothing before there is any advice."""
        snapshot = self._router.snapshot()
        advice = snapshot.advice
        if advice is None and self._said is None:
            return
        now = (snapshot.prefillers, None if advice is None else advice.prefillers)
        if now == self._said:
            return
        self._said = now
        logger.info(
            "roles (%s): %d workers only compute prompts; advice: %s",
            snapshot.roles,
            snapshot.prefillers,
            "none, too little was measured of late" if advice is None else advice,
        )


def told(snapshot: Snapshot) -> dict[str, Any]:
    """The same as data, with the terms of the advice."""
    advice = snapshot.advice
    return {
        "mode": snapshot.roles,
        "prefillers": snapshot.prefillers,
        "advice": None if advice is None else {key: getattr(advice, key) for key in _TERMS},
    }
