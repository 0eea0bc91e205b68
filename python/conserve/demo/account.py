"""How much of a turn's prompt had been computed before and was computed again on the decoder.

Definition. Turn 1 was computed whole by the prefiller. Of a later turn, computed before is the longest common prefix of
its prompt ids and the previous turn's prompt and answer ids, but for the last answered token, whose KV no engine has
computed yet. What the decoder found resident or pulled is the answer's `cached_tokens`. The difference was computed
again. Engines keep KV in whole blocks, and must run the last token of any prompt to sample from it; both are reported as
`partial_block`, everything beyond as `recomputed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .client import Answer


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Prompt tokens of one turn: found in the decoder's KV, new, and computed a second time."""

    resident: int
    new: int
    recomputed: int
    partial_block: int


def recomputation(answer: Answer, previous: Answer | None, *, block_size: int) -> Recomputation:
    """Account for one turn; `previous` is None for the conversation's first.

    Raises:
        ValueError: the answers do not carry the token ids that are needed to compare them.
    """
    if previous is None:
        before = answer.prompt_tokens
    else:
        if not answer.prompt_ids or not previous.prompt_ids:
            raise ValueError("the engine sent no token ids: ask for return_token_ids")
        before = common_prefix(answer.prompt_ids, (*previous.prompt_ids, *previous.output_ids)[:-1])
    again = max(0, before - answer.cached_tokens)
    reusable = min(before, answer.prompt_tokens - 1) // block_size * block_size
    recomputed = max(0, reusable - answer.cached_tokens)
    return Recomputation(
        resident=answer.cached_tokens,
        new=answer.prompt_tokens - max(before, answer.cached_tokens),
        recomputed=recomputed,
        partial_block=again - recomputed,
    )


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading items are equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
