"""What the server asks of the engine, and what the engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen and when the text ends."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Candidates kept; 0 keeps all."""
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class RemotePrefill:
    """Where the KV blocks of a prompt lie that another worker computed."""

    engine_id: str
    request_id: str
    host: str
    port: int
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    salt: str = ""
    """Requests share cached blocks only under the same salt."""
    hand_off: bool = False
    """Keep the prompt's blocks for another worker to fetch when the request ends."""
    remote: RemotePrefill | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """News of one request; the last one has a finish reason."""

    request_id: str
    text: str = ""
    tokens: tuple[int, ...] = ()
    """The tokens generated since the output before."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    output_tokens: int = 0
    """Tokens generated so far."""
    cached_tokens: int = 0
    """Prompt tokens that were resident here or fetched, hence not computed."""
    kv_transfer_params: dict[str, Any] | None = field(default=None)
    error: str | None = None
