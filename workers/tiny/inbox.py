"""What other threads tell the engine's thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from conserve_workers.tiny.request import Request


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Its client went away."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetch ended: with the bytes that came, or with an error."""

    request_id: str
    received: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Sent:
    """A decoder has fetched a prompt; `blocks` are to be given back."""

    blocks: list[int]
    sent: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A decoder asked for blocks that are not kept here."""


@dataclass(frozen=True, slots=True)
class TellIdle:
    """Somebody waits until nothing is under way."""

    event: threading.Event


@dataclass(frozen=True, slots=True)
class Stop:
    """The process ends."""


Message = Submit | Abort | Fetched | Sent | Refused | TellIdle | Stop
