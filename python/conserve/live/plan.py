"""What is compared live, and what each conversation sends: token counts and waits, no text yet.

A trace is scaled to the engines: prompts and answers by `scale`, tool times by `gap_scale`. A conversation ends before the
turn that would pass the engines' context.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from conserve._counted import counted
from conserve._meant import meant
from conserve.errors import ConfigError
from conserve.sim.contender import Contender
from conserve.sim.workload import (
    SYNTHETIC,
    WORKLOADS,
    Conversation,
    TurnRecord,
    conversations,
    poisson,
    read_jsonl,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LivePlan", "Script", "Step", "scaled", "scripts"]


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What is compared. The first policy is what the others are compared with.

    Raises:
        ConfigError: an option is out of range; the message names it.
    """

    trace: str
    policies: tuple[str, ...]
    rate_per_s: float
    conversations: int = 16
    rounds: int = 3
    seed: int = 1
    scale: float = 1.0
    gap_scale: float = 1.0
    max_turns: int | None = None
    traces: Path | None = None
    turn_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for policy in self.policies:
            Contender.read(policy)
        name = self.trace.removeprefix(SYNTHETIC)
        if name not in WORKLOADS and (name != self.trace or not Path(self.trace).is_file()):
            raise ConfigError(
                f"trace is {self.trace!r}, which is no file; choose {SYNTHETIC}NAME, a file of conversations, "
                f"or NAME, of {', '.join(WORKLOADS)}{meant(name, WORKLOADS)}"
            )
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise ConfigError("policies: give at least one, each once")
        for name in ("conversations", "rounds", "max_turns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        for name in ("rate_per_s", "scale", "turn_timeout_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value:g}; it must be above 0")
        if not (math.isfinite(self.gap_scale) and self.gap_scale >= 0):
            raise ConfigError(f"gap_scale is {self.gap_scale:g}; it must be at least 0")

    def seed_of(self, round_number: int) -> int:
        """The seed of a round: conversations, their order, arrivals and text follow from it."""
        return self.seed + round_number

    def check_trace(self) -> None:
        """Reads the trace, so that a broken one is refused before anything is started.

        Raises:
            ConfigError: it cannot be read, or a record is broken.
        """
        self.tasks(0, context_limit=sys.maxsize)

    @property
    def words(self) -> str:
        """All of it that changes what is measured, but the policies."""
        is_generated = self.trace.startswith(SYNTHETIC) or not (self.traces or Path(self.trace).is_file())
        words = [
            f"{self.trace} ({'generated, not recorded' if is_generated else 'recorded'}) at scale {self.scale:g}"
        ]
        if self.gap_scale != 1:
            words.append(f"tool times at {self.gap_scale:g}")
        if self.max_turns is not None:
            words.append(f"{counted(self.max_turns, 'turn')} each at most")
        words += [f"{self.rate_per_s:g}/s", counted(self.conversations, "conversation")]
        return ", ".join([*words, f"{counted(self.rounds, 'round')} from seed {self.seed}"])

    def tasks(self, round_number: int, *, context_limit: int) -> list[Conversation]:
        """The round's conversations, scaled.

        Raises:
            ConfigError: there is no such trace, or no conversation of it fits the engines.
        """
        seed = self.seed_of(round_number)
        if self.trace.startswith(SYNTHETIC):
            found = conversations(
                self.trace.removeprefix(SYNTHETIC), self.conversations, seed=seed, traces=None
            )
        elif Path(self.trace).is_file():
            recorded = list(read_jsonl(Path(self.trace)))
            if not recorded:
                raise ConfigError(f"the trace {self.trace} holds no conversation")
            first = round_number * self.conversations
            found = [recorded[(first + place) % len(recorded)] for place in range(self.conversations)]
        else:
            found = conversations(self.trace, self.conversations, seed=seed, traces=self.traces)
        kept = [
            one
            for one in (
                scaled(
                    task,
                    scale=self.scale,
                    gap_scale=self.gap_scale,
                    max_turns=self.max_turns,
                    context_limit=context_limit,
                )
                for task in found
            )
            if one is not None
        ]
        if not kept:
            raise ConfigError(
                f"no conversation of {self.trace} fits {context_limit:,} tokens at scale {self.scale:g}; use a smaller one"
            )
        return kept

    def arrivals_s(self, round_number: int, count: int) -> list[float]:
        """Poisson arrivals; the first conversation comes at once."""
        times = poisson(count, rate_per_s=self.rate_per_s, seed=self.seed_of(round_number))
        return [at - times[0] for at in times]


@dataclass(frozen=True, slots=True)
class Step:
    """One turn as it is sent: so many tokens of the history as they are, then so many new ones."""

    gap_s: float
    keep: int
    append: int
    output: int


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation to replay."""

    id: str
    arrival_s: float
    steps: tuple[Step, ...]
    visible: int
    """Index of the first turn whose answer the user sees."""
    shared_head: int = 0
    """Tokens at the start of the first prompt that all conversations share."""

    @classmethod
    def of(cls, task: Conversation, *, name: str, arrival_s: float) -> Script:
        """The script of a scaled conversation."""
        return cls(
            id=name,
            arrival_s=arrival_s,
            steps=tuple(
                Step(turn.gap_s, turn.reuse_tokens, turn.append_tokens, turn.output_tokens)
                for turn in task.turns
            ),
            visible=task.visible_turn,
            shared_head=task.shared_prefix_tokens,
        )

    @property
    def tool_s(self) -> float:
        """Waiting for tools before the answer that the user sees."""
        return math.fsum(step.gap_s for step in self.steps[: self.visible + 1])

    def appended(self, turns: int) -> int:
        """Prompt tokens of the first `turns` turns that a perfect cache leaves to compute."""
        return sum(step.append for step in self.steps[:turns])


def scaled(
    task: Conversation,
    *,
    scale: float,
    gap_scale: float = 1.0,
    max_turns: int | None = None,
    context_limit: int,
) -> Conversation | None:
    """The conversation at another size; None if not even its first turn fits."""
    turns: list[TurnRecord] = []
    context = before = 0
    for turn in task.turns[:max_turns]:
        is_whole = not turn.reset and turn.reuse_tokens >= before
        keep = context if is_whole else min(context, round(turn.reuse_tokens * scale))
        append = max(1, round(turn.append_tokens * scale))
        output = max(1, round(turn.output_tokens * scale))
        if keep + append + output > context_limit:
            break
        before, context = turn.context_tokens, keep + append + output
        turns.append(
            replace(
                turn,
                append_tokens=append,
                output_tokens=output,
                reuse_tokens=keep,
                gap_s=turn.gap_s * gap_scale,
            )
        )
    if not turns:
        return None
    head = min(round(task.shared_prefix_tokens * scale), turns[0].append_tokens - 1)
    return replace(task, turns=tuple(turns), shared_prefix_tokens=max(0, head))


def scripts(tasks: Sequence[Conversation], arrivals_s: Sequence[float]) -> list[Script]:
    """One script for each conversation, by its place."""
    return [
        Script.of(task, name=f"task-{place}", arrival_s=at)
        for place, (task, at) in enumerate(zip(tasks, arrivals_s, strict=True))
    ]
