"""Rounds to figures: one policy over all rounds, against the first policy round by round. Times in seconds, NaN where unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conserve.sim.stats import Interval, is_stable, mean_interval, paired_change, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .run import Round

__all__ = ["Figures", "Outcome", "figures", "outcomes"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy in one round."""

    ttfet_p50_s: float
    ttfet_p95_s: float
    ttfet_no_tool_p95_s: float
    """Without the tool time before the answer that the user sees."""
    ttft_p95_s: float
    """Of every turn, from the moment it was ready."""
    tbt_last_p95_s: float
    """Over conversations, of the mean gap between the tokens of the last turn."""
    handoffs: float
    """For each conversation."""
    computed_ratio: float
    """Prompt tokens that the engines computed for each one that a perfect cache of each conversation leaves."""
    tokens_per_j: float
    """Generated ones; NaN without an energy counter."""
    preemptions: int
    failed: int
    """Conversations that did not end."""
    is_stable: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy over the rounds in which every conversation ended and the backlog did not grow."""

    policy: str
    ttfet_p50_s: Interval
    ttfet_p95_s: Interval
    ttfet_no_tool_p95_s: Interval
    ttft_p95_s: Interval
    tbt_last_p95_s: Interval
    tokens_per_j: Interval
    handoffs: float
    computed_ratio: float
    preemptions: int
    failed: int
    unstable: int
    """Rounds without percentiles: the backlog grew while conversations arrived, or one failed."""
    ttfet_p95_change: Interval
    """Against the first policy, in percent."""
    ttft_p95_change: Interval
    tbt_last_p95_change: Interval


def figures(one: Round) -> Figures:
    """What one round says."""
    told = one.told
    pairs = [(each.ttfet_s, each.script.tool_s) for each in told]
    seen = [(ttfet, tool) for ttfet, tool in pairs if ttfet is not None]
    waits = [
        answer.first_s - ready
        for each in told
        for answer, ready in zip(each.answers, each.ready_s, strict=True)
    ]
    last = [each.answers[-1].gaps_s for each in told if each.failure is None]
    due = sum(each.script.appended(len(each.answers)) for each in told)
    failed = sum(each.failure is not None for each in told)
    arrivals = [each.script.arrival_s for each in told]
    return Figures(
        ttfet_p50_s=percentile([ttfet for ttfet, _ in seen], 50),
        ttfet_p95_s=percentile([ttfet for ttfet, _ in seen], 95),
        ttfet_no_tool_p95_s=percentile([ttfet - tool for ttfet, tool in seen], 95),
        ttft_p95_s=percentile(waits, 95),
        tbt_last_p95_s=percentile([math.fsum(gaps) / len(gaps) for gaps in last if gaps], 95),
        handoffs=sum(each.handoffs for each in told) / len(told),
        computed_ratio=one.counted.computed_tokens / due if due else math.nan,
        tokens_per_j=one.counted.generated_tokens / one.counted.joules if one.counted.joules else math.nan,
        preemptions=one.counted.preemptions,
        failed=failed,
        is_stable=failed == 0 and is_stable(arrivals, [each.done_s for each in told]),
    )


def outcomes(rounds: Sequence[Round], policies: Sequence[str]) -> list[Outcome]:
    """Each policy over its rounds, the first one being what the others are compared with."""
    by_policy = {
        policy: [figures(one) for one in sorted(rounds, key=lambda one: one.number) if one.policy == policy]
        for policy in policies
    }
    return [_outcome(policy, by_policy[policy], by_policy[policies[0]]) for policy in policies]


def _outcome(policy: str, own: list[Figures], base: list[Figures]) -> Outcome:
    stable = [one for one in own if one.is_stable]
    pairs = [(one, other) for one, other in zip(own, base, strict=True) if one.is_stable and other.is_stable]

    def mean(of: Callable[[Figures], float]) -> Interval:
        return mean_interval([of(one) for one in stable])

    def change(of: Callable[[Figures], float]) -> Interval:
        return paired_change([of(one) for one, _ in pairs], [of(other) for _, other in pairs])

    return Outcome(
        policy=policy,
        ttfet_p50_s=mean(lambda one: one.ttfet_p50_s),
        ttfet_p95_s=mean(lambda one: one.ttfet_p95_s),
        ttfet_no_tool_p95_s=mean(lambda one: one.ttfet_no_tool_p95_s),
        ttft_p95_s=mean(lambda one: one.ttft_p95_s),
        tbt_last_p95_s=mean(lambda one: one.tbt_last_p95_s),
        tokens_per_j=mean(lambda one: one.tokens_per_j),
        handoffs=math.fsum(one.handoffs for one in own) / len(own),
        computed_ratio=math.fsum(one.computed_ratio for one in own) / len(own),
        preemptions=sum(one.preemptions for one in own),
        failed=sum(one.failed for one in own),
        unstable=len(own) - len(stable),
        ttfet_p95_change=change(lambda one: one.ttfet_p95_s),
        ttft_p95_change=change(lambda one: one.ttft_p95_s),
        tbt_last_p95_change=change(lambda one: one.tbt_last_p95_s),
    )
