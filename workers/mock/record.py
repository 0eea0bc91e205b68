"""What a mock worker remembers of each request, raw, for assertions."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from .fault import Leg


@dataclasses.dataclass(slots=True, eq=False)
class Recorded:
    """One request for a completion, as it arrived and as it ended."""

    leg: Leg
    path: str
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, in the order of arrival, repeated ones kept."""
    body: bytes
    json: dict[str, Any]
    started_s: float
    """On the event loop's clock, as are the other times."""
    keeps: bool = False
    """Its KV is to be kept when it is answered."""
    ended_s: float | None = None
    aborted: bool = False
    """The client left before the answer's end."""
    stale: bool = False
    """Its handoff parameters had outlived the lease: a real engine would have answered with wrong text."""
    cached_tokens: int = 0
    transferred_tokens: int = 0
    computed_tokens: int = 0
    sent_bytes: int = 0
    """Bytes of the body handed to the system so far."""
    done: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when the request ended, one way or the other."""

    def header(self, name: str) -> str | None:
        """The first value of the header `name`, None without one."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    def as_json(self) -> dict[str, Any]:
        """What `GET /mock/requests` tells of it."""
        return {
            "leg": self.leg,
            "path": self.path,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
            "keeps": self.keeps,
            "body": self.body.decode("utf-8", "replace"),
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "aborted": self.aborted,
            "stale": self.stale,
            "cached_tokens": self.cached_tokens,
            "transferred_tokens": self.transferred_tokens,
            "computed_tokens": self.computed_tokens,
            "sent_bytes": self.sent_bytes,
        }
