"""One whole comparison: live rounds, and on request the same rounds in the simulator with constants of these engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .outcome import Outcome, outcomes
from .predict import Prediction, predict
from .probe import Measured, probe
from .run import Round, Site, run_live

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .engines import Engines
    from .plan import LivePlan

__all__ = ["Comparison", "compare_live"]

_CHUNK_TOKENS: Final = 2048
"""Of an engine that does not say: vLLM's usual budget."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was seen live, and what the simulator says: with steps of an engine alone, then of engines that all work."""

    rounds: list[Round]
    outcomes: list[Outcome]
    predictions: tuple[Prediction, ...]


async def compare_live(
    plan: LivePlan,
    engines: Engines,
    *,
    log_dir: Path,
    calibrate: bool = False,
    chunk_tokens: int | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> Comparison:
    """Runs the rounds, then, if asked, measures the engines and simulates the same.

    Raises:
        ConfigError: the plan does not fit the engines.
        LiveError: a process did not start or a server did not answer.
    """
    found: list[tuple[Measured, int]] = []

    async def measure(site: Site) -> None:
        tell("measuring the engines")
        longest = max(
            task.peak_context_tokens
            for number in range(plan.rounds)
            for task in plan.tasks(number, context_limit=site.context_limit)
        )
        steps = chunk_tokens or engines.chunk_tokens or _CHUNK_TOKENS
        found.append((await probe(site, longest=longest, chunk_tokens=steps), site.context_limit))

    rounds = await run_live(plan, engines, log_dir=log_dir, tell=tell, then=measure if calibrate else None)
    return Comparison(
        rounds=rounds,
        outcomes=outcomes(rounds, plan.policies),
        predictions=tuple(
            predict(plan, engines, rounds, measured, context_limit=limit, busy_constants=is_busy)
            for measured, limit in found
            for is_busy in (False, True)
        ),
    )
