"""What happened, as values and as the JSON of `--json`. Tables are `tables`; nothing is measured here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .agent import Agent, Turn


@dataclass(frozen=True, slots=True)
class ConversationReport:
    """One conversation. Times in seconds.

    `key`, `decoder`, `handoffs`, `relocations`, `ttfet_s` and `booked_blocks` are the router's word. `decoders` are those named by the
    turns' answers, in order and without repetition. Token counts are the sums of the answers' usage over all turns;
    `recomputed_tokens` and `partial_block_tokens` are defined in `account`.
    """

    agent: Agent
    turns: tuple[Turn, ...]
    key: str
    decoder: str
    decoders: tuple[str, ...]
    handoffs: int
    relocations: int
    ttfet_s: float | None
    booked_blocks: int

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all turns; each turn's prompt contains the earlier ones."""
        return sum(turn.answer.prompt_tokens for turn in self.turns)

    @property
    def resident_tokens(self) -> int:
        """Prompt tokens that the decoder had already when a later turn came."""
        return sum(turn.tokens.resident for turn in self.turns[1:])

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that no earlier turn had: turn 1, then what each turn appends."""
        first = self.turns[0].answer.prompt_tokens if self.turns else 0
        return first + sum(turn.tokens.new for turn in self.turns[1:])

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens in whole blocks that the decoder computed although they had been computed before."""
        return sum(turn.tokens.recomputed for turn in self.turns)

    @property
    def partial_block_tokens(self) -> int:
        """The same in blocks that were not full, and the last token of a prompt that was pulled."""
        return sum(turn.tokens.partial_block for turn in self.turns)

    @property
    def texts(self) -> tuple[str, ...]:
        """The answers."""
        return tuple(turn.answer.text for turn in self.turns)

    @property
    def text_sha256(self) -> str:
        """SHA-256 of the answers in UTF-8, each followed by a zero byte."""
        return hashlib.sha256(b"".join(text.encode() + b"\0" for text in self.texts)).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The conversation in the file of `--json`."""
        return {
            "id": self.agent.id,
            "turns": len(self.turns),
            "decoder": self.decoder,
            "handoffs": self.handoffs,
            "relocations": self.relocations,
            "ttfet_s": self.ttfet_s,
            "prompt_tokens": self.prompt_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "text_sha256": self.text_sha256,
            "tenant": self.agent.tenant,
            "key": self.key,
            "file": self.agent.plan.path,
            "new_tokens": self.new_tokens,
            "resident_tokens": self.resident_tokens,
            "partial_block_tokens": self.partial_block_tokens,
            "booked_blocks": self.booked_blocks,
            "steps": [
                {
                    "turn": turn.number,
                    "tool": turn.command or None,
                    "prompt_tokens": turn.answer.prompt_tokens,
                    "cached_tokens": turn.answer.cached_tokens,
                    "output_tokens": turn.answer.output_tokens,
                    "ttft_s": round(turn.answer.ttft_s, 4),
                    "elapsed_s": round(turn.answer.elapsed_s, 4),
                    "text": turn.answer.text,
                }
                for turn in self.turns
            ],
        }


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one engine counted during the run, from its own /metrics."""

    name: str
    role: str
    computed_tokens: int
    resident_tokens: int
    pulled_tokens: int
    generated_tokens: int
    preemptions: int

    def as_json(self) -> dict[str, Any]:
        """The worker in the file of `--json`."""
        return {
            "role": self.role,
            "prompt_tokens_by_source": {
                "local_compute": self.computed_tokens,
                "local_cache_hit": self.resident_tokens,
                "external_kv_transfer": self.pulled_tokens,
            },
            "generated_tokens": self.generated_tokens,
            "preemptions": self.preemptions,
        }


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The fleet after the last turn. `router` is GET /v1/fleet?check=true as it came."""

    workers: tuple[WorkerReport, ...]
    router: Mapping[str, Any]

    @property
    def booked_blocks(self) -> dict[str, int]:
        """KV blocks that the router has booked on each worker."""
        return {row["name"]: row["booked_blocks"] for row in self.router["workers"]}

    def as_json(self, conversations: Sequence[ConversationReport]) -> dict[str, Any]:
        """The fleet in the file of `--json`."""
        return {
            "placements": placements(conversations),
            "handoffs": sum(conversation.handoffs for conversation in conversations),
            "relocations": sum(conversation.relocations for conversation in conversations),
            "booked_blocks": self.booked_blocks,
            "workers": {worker.name: worker.as_json() for worker in self.workers},
            "router": self.router,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. `checked` says whether the texts were compared with one engine; `problems` is what is not as it should be.

    `mishaps` is what did not go as planned, `warnings` what the logs say of it; `logs` is their folder where it is kept.
    """

    model: str
    conversations: tuple[ConversationReport, ...]
    fleet: FleetReport
    elapsed_s: float
    checked: bool = False
    check_elapsed_s: float | None = None
    problems: tuple[str, ...] = ()
    mishaps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    logs: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """The file of `--json`."""
        return {
            "model": self.model,
            "elapsed_s": round(self.elapsed_s, 3),
            "check": {
                "done": self.checked,
                "elapsed_s": None if self.check_elapsed_s is None else round(self.check_elapsed_s, 3),
                "problems": list(self.problems),
            },
            "mishaps": list(self.mishaps),
            "conversations": [conversation.as_json() for conversation in self.conversations],
            "fleet": self.fleet.as_json(self.conversations),
        }


def placements(conversations: Sequence[ConversationReport]) -> dict[str, int]:
    """How many conversations each decoder has."""
    counts: dict[str, int] = {}
    for conversation in conversations:
        counts[conversation.decoder] = counts.get(conversation.decoder, 0) + 1
    return dict(sorted(counts.items()))
