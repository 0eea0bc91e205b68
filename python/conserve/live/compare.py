"""One whole comparison: live rounds, and on request the same rounds in the simulator with constants of these engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .handoff import pairs
from .outcome import Outcome, outcomes
from .predict import Prediction, predict
from .probe import Measured, probe
from .run import Round, Site, run_live

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .engines import Engines
    from .plan import LivePlan

__all__ = ["Comparison", "compare_live", "compared", "whole_rounds"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was seen live, and what the simulator says: with steps of an engine alone, then of engines that all work."""

    rounds: list[Round]
    outcomes: list[Outcome]
    """Over the rounds that every policy had; empty if there is none."""
    predictions: tuple[Prediction, ...]


def whole_rounds(plan: LivePlan, rounds: list[Round]) -> int:
    """How many rounds every policy had."""
    return min(sum(one.policy == policy for one in rounds) for policy in plan.policies)


def compared(plan: LivePlan, rounds: list[Round], predictions: tuple[Prediction, ...] = ()) -> Comparison:
    """What these rounds say, be they all that were asked for or not."""
    count = whole_rounds(plan, rounds)
    whole = [one for one in rounds if one.number < count]
    return Comparison(rounds, outcomes(whole, plan.policies) if count else [], predictions)


async def compare_live(
    plan: LivePlan,
    engines: Engines,
    *,
    log_dir: Path,
    rounds: list[Round],
    calibrate: bool = False,
    chunk_tokens: int | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> Comparison:
    """Runs the rounds, then, if asked, measures the engines and simulates the same. `rounds` takes each run as it ends.

    Raises:
        ConfigError: the plan does not fit the engines.
        LiveError: a process did not start, or ended too early, or a server did not answer.
    """
    found: list[tuple[Measured, int]] = []

    async def measure(site: Site) -> None:
        tell("measuring the engines")
        longest = max(
            task.peak_context_tokens
            for number in range(plan.rounds)
            for task in plan.tasks(number, context_limit=site.context_limit)
        )
        measured = await probe(
            site, longest=longest, chunk_tokens=chunk_tokens, handoffs=pairs(engines, plan.policies)
        )
        found.append((measured, site.context_limit))

    for warning in engines.warnings:
        tell(f"warning: {warning}")
    await run_live(
        plan, engines, log_dir=log_dir, rounds=rounds, tell=tell, then=measure if calibrate else None
    )
    return compared(
        plan,
        rounds,
        tuple(
            predict(plan, engines, rounds, measured, context_limit=limit, busy_constants=is_busy)
            for measured, limit in found
            for is_busy in (False, True)
        ),
    )
