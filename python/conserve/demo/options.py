"""What the demo was asked to do, and the sizes that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

PREFILLERS = 1
DECODERS = 2
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192


def default_workdir() -> Path:
    """The project whose source this is; the installed package when it runs from a wheel."""
    package = Path(__file__).resolve().parents[1]
    project = package.parents[1]
    return project if (project / "Cargo.toml").is_file() else package


@dataclass(frozen=True, slots=True)
class TextSizes:
    """How much text the agents send. `tokens_per_char` is an upper bound used to size the KV caches."""

    prompt_chars: int
    tool_chars: int
    tokens_per_char: float

    @classmethod
    def of(cls, model: str) -> TextSizes:
        """Sizes for a model: `random` reads bytes, a language model reads about three characters a token."""
        if model == "random":
            return cls(prompt_chars=900, tool_chars=240, tokens_per_char=1.5)
        return cls(prompt_chars=2400, tool_chars=360, tokens_per_char=0.6)


@dataclass(frozen=True, slots=True)
class Options:
    """One run of the demo.

    Raises:
        ValueError: a number is out of its range; the message names it.
    """

    workdir: Path
    conversations: int = 8
    turns: int = 4
    tenants: int = 1
    headers: bool = True
    check: bool = False
    model: str = "smollm2"
    threads: int = 1
    max_tokens: int = 24
    start_timeout_s: float = 180.0
    turn_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        ranges = (
            ("conversations", self.conversations, 1, 256),
            ("turns", self.turns, 1, 64),
            ("tenants", self.tenants, 1, self.conversations),
            ("threads", self.threads, 1, 256),
            ("max-tokens", self.max_tokens, 1, 2048),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise ValueError(f"--{name} {value}: use {low} to {high}")
        if self.tokens_per_conversation > MAX_MODEL_LEN:
            raise ValueError(
                f"--turns {self.turns} with --max-tokens {self.max_tokens} needs about {self.tokens_per_conversation} tokens "
                f"for each conversation; the engine's limit is {MAX_MODEL_LEN}: ask for fewer turns or tokens"
            )

    @property
    def sizes(self) -> TextSizes:
        """How much text the agents send."""
        return TextSizes.of(self.model)

    @property
    def tokens_per_conversation(self) -> int:
        """An upper bound of a conversation's tokens at its end."""
        sizes = self.sizes
        sent = (
            sizes.prompt_chars + 400 + (self.turns - 1) * (sizes.tool_chars + 160)
        ) * sizes.tokens_per_char
        # An answer may read back as a few more tokens than were generated.
        answered = self.turns * self.max_tokens * 1.25
        return math.ceil(sent + answered)

    def kv_blocks(self, conversations: int) -> int:
        """KV blocks that hold this many whole conversations with a third to spare."""
        return max(128, math.ceil(conversations * self.tokens_per_conversation / BLOCK_SIZE * 4 / 3))
