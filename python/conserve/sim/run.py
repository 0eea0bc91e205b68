"""One run of the simulator's core: a scenario as a mapping, conversations as records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from conserve._core import SimResult, SimWorkload
from conserve._core import simulate as _simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .workload import Conversation, TurnRecord

__all__ = ["SimResult", "SimWorkload", "columns", "joules", "simulate"]


def columns(
    conversations: Sequence[Conversation],
    *,
    arrivals_s: Sequence[float],
    flips: Sequence[Sequence[bool]] | None = None,
    shared_prefix: bool = False,
) -> SimWorkload:
    """The conversations, each arriving at its time, as the core takes them.

    `flips` declares turns mispredicted, one sequence for each conversation (see the scenario's `flip`). With
    `shared_prefix` the head of the first prompts that the source shares is computed once on each engine.

    Raises ValueError with column and place for lengths or times that cannot be.
    """
    if len(arrivals_s) != len(conversations):
        raise ValueError(f"{len(arrivals_s)} arrival times for {len(conversations)} conversations")
    turns = [turn for conversation in conversations for turn in _sent(conversation)]
    marked = [
        index == conversation.visible_turn or turn.visible
        for conversation in conversations
        for index, turn in enumerate(conversation.turns)
    ]
    heads = [
        conversation.shared_prefix_tokens
        if shared_prefix and conversation.shared_prefix_tokens < conversation.turns[0].prompt_tokens
        else 0
        for conversation in conversations
    ]
    return SimWorkload(
        arrival_s=arrivals_s,
        turns=[len(conversation.turns) for conversation in conversations],
        append=[turn.append_tokens for turn in turns],
        output=[turn.output_tokens for turn in turns],
        gap_s=[turn.gap_s for turn in turns],
        visible=marked,
        reuse=[turn.reuse_tokens for turn in turns],
        flip=None if flips is None else [flip for flipped in flips for flip in flipped],
        prefix_id=[0 if head else -1 for head in heads],
        prefix_tokens=heads,
    )


def _sent(conversation: Conversation) -> Iterator[TurnRecord]:
    """The turns as an engine can meet them, with the prompts that were recorded.

    A recorded call may have generated nothing: it is answered by one token. It may share more with an earlier prompt than the
    one before it left: only the latest history is kept.
    """
    context = 0
    for turn in conversation.turns:
        reuse = min(turn.reuse_tokens, context)
        output = max(1, turn.output_tokens)
        sent = replace(
            turn, append_tokens=turn.prompt_tokens - reuse, reuse_tokens=reuse, output_tokens=output
        )
        context = sent.context_tokens
        yield sent


def simulate(scenario: Mapping[str, object], workload: SimWorkload, *, seed: int) -> SimResult:
    """Runs `scenario` over `workload`; the same three give the same result to the last bit.

    A scenario is what `docs/reference/scenario.md` lists; `{"engines": [{"role": "both"}]}` is a whole one. Other threads
    run meanwhile.

    Raises ConfigError with the path of the first key that is unknown, of the wrong type or out of range.
    """
    return _simulate(json.dumps(scenario), workload, seed=seed)


def joules(result: SimResult) -> float:
    """What all engines drew until the run ended."""
    engines = result.engines()
    phases = (
        engines["prefill_j"],
        engines["mixed_j"],
        engines["decode_j"],
        engines["idle_j"],
        engines["parked_j"],
    )
    return math.fsum(math.fsum(phase) for phase in phases)
