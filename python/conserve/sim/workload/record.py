"""What a simulated conversation asks for: token counts and gaps, no text."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Conversation", "TurnRecord"]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One LLM call.

    `append_tokens` are the prompt tokens that no earlier turn of the conversation left in the KV cache, `reuse_tokens`
    those it did: the prompt is their sum. `gap_s` is the client's time (tool run, thinking) between the previous answer
    and this call. `reset` marks a prompt that does not extend the previous one (compaction, cleared history).
    """

    append_tokens: int
    output_tokens: int
    reuse_tokens: int = 0
    gap_s: float = 0.0
    visible: bool = False
    reset: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.append_tokens + self.reuse_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens in the KV cache when the turn has ended."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one task, in order.

    `arrival_s` is the time of turn 1 in the source trace, if known. The first `shared_prefix_tokens` of turn 1 (tools and
    system prompt) also head the other conversations of that source.
    """

    id: str
    turns: tuple[TurnRecord, ...]
    arrival_s: float | None = None
    shared_prefix_tokens: int = 0
    resumed: bool = False
    parent: str | None = None

    def renamed(self, name: str) -> Conversation:
        """The same turns under another id."""
        return replace(self, id=name)

    @property
    def prompt_tokens_new(self) -> int:
        """Prompt tokens that a perfect cache of this conversation leaves to compute."""
        return sum(turn.append_tokens for turn in self.turns)

    @property
    def output_tokens(self) -> int:
        """Generated tokens of all turns."""
        return sum(turn.output_tokens for turn in self.turns)

    @property
    def peak_context_tokens(self) -> int:
        """The most KV that it ever holds, in tokens."""
        return max(turn.context_tokens for turn in self.turns)

    @property
    def visible_turn(self) -> int:
        """Index of the first turn whose answer the user sees; the last one if the record marks none."""
        return next((index for index, turn in enumerate(self.turns) if turn.visible), len(self.turns) - 1)
