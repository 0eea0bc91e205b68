"""The comparison as data: the outcome of each policy, and every conversation of every round beneath it."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from typing import TYPE_CHECKING

from .outcome import figures

if TYPE_CHECKING:
    from .compare import Comparison
    from .engines import Engines
    from .plan import LivePlan
    from .replay import Told

__all__ = ["as_data"]


def as_data(
    plan: LivePlan,
    engines: Engines,
    result: Comparison,
    *,
    stopped: str | None = None,
) -> dict[str, object]:
    """Everything; numbers that are not known are null. `stopped` says why not all rounds were run."""
    return {key: _finite(value) for key, value in _data(plan, engines, result, stopped).items()}


def _data(plan: LivePlan, engines: Engines, result: Comparison, stopped: str | None) -> dict[str, object]:
    return {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            # Over 1, 5 and 15 minutes before the end; the engines' own work is in it.
            "load": os.getloadavg(),
        },
        "engines": engines.words,
        "stopped": stopped,
        "plan": {**dataclasses.asdict(plan), "traces": None if plan.traces is None else str(plan.traces)},
        "roles": {
            policy: [worker.role_under(policy) for worker in engines.workers] for policy in plan.policies
        },
        "policies": [dataclasses.asdict(one) for one in result.outcomes],
        "simulated": [dataclasses.asdict(one) for one in result.predictions],
        "rounds": [
            {
                "policy": one.policy,
                "round": one.number,
                "seed": one.seed,
                "figures": dataclasses.asdict(figures(one)),
                "counted": dataclasses.asdict(one.counted),
                "conversations": [_conversation(each) for each in one.told],
            }
            for one in result.rounds
        ],
    }


def _conversation(told: Told) -> dict[str, object]:
    return {
        "id": told.script.id,
        "arrival_s": told.script.arrival_s,
        "ttfet_s": told.ttfet_s,
        "tool_s": told.script.tool_s,
        "failure": told.failure,
        "ttft_s": [answer.first_s - ready for answer, ready in zip(told.answers, told.ready_s, strict=True)],
        "prompt_tokens": [answer.prompt_tokens for answer in told.answers],
        "cached_tokens": [answer.cached_tokens for answer in told.answers],
        "output_tokens": [len(answer.tokens) for answer in told.answers],
        "decoder": [answer.headers.get("x-conserve-decoder", "") for answer in told.answers],
        "handoffs": told.handoffs,
    }


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
