"""What a mock worker does wrong, and to which requests.

A fault is armed from Python (`worker.arm(Fault(...))`), over HTTP (`POST /mock/faults` with a list of objects), or by
the request itself (header `x-mock-fault: {"status": 503}`), so that one client can be hurt while others are served.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Literal, Self

Leg = Literal["prefill", "decode"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing to do to a request; all offsets count bytes of the answer's body, framing not included."""

    leg: Leg | None = None
    """Only requests of this leg; None: any."""
    times: int | None = None
    """How many matching requests it hits before it is spent; None: all of them."""
    latency_s: float = 0.0
    """Wait before the answer's head."""
    interval_s: float = 0.0
    """Wait between two tokens."""
    stall_head: bool = False
    """Never answer: the request waits until its client leaves."""
    stall_at: int | None = None
    """Stop writing after so many bytes, connection open."""
    reset_at: int | None = None
    """Reset the connection (RST) after so many bytes; 0: before the head."""
    close_at: int | None = None
    """Close the connection (FIN) after so many bytes, the answer unfinished; 0: before the head."""
    garbage_at: int | None = None
    """After so many bytes of a stream, bytes that are no chunk, connection open."""
    no_done: bool = False
    """End the stream properly, but without `data: [DONE]`."""
    status: int | None = None
    """Answer with this status and an error object (or `body`)."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Headers added to the answer, whatever it is."""
    body: str | None = None
    """Answer with these bytes as `application/json`, status 200 unless `status` says otherwise."""
    no_params: bool = False
    """A prefill answer without `kv_transfer_params`."""
    params: object = None
    """What stands for `kv_transfer_params` in an answer that is not streamed, instead of what is true."""
    gzip: bool = False
    """Compress the answer, `content-encoding: gzip`."""
    split: int | None = None
    """Write the body in pieces of so many bytes."""
    pause_at: int | None = None
    """Wait a moment after so many bytes, so that they travel on their own."""
    tokens: int | None = None
    """Tokens to generate, whatever the request asks for."""
    token_bytes: int | None = None
    """Size of each token's text: huge streams from few tokens."""
    text: str | None = None
    """The text of each token, letters of several bytes say, whatever the prompt."""
    tool_call: bool = False
    """End with a tool call instead of text."""

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Build one from parsed JSON; raises ValueError naming the unknown key."""
        if not isinstance(value, dict):
            raise ValueError("a fault is an object")  # noqa: TRY004
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(value) - known):
            raise ValueError(f"unknown fault key {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return cls(**value)

    @classmethod
    def from_header(cls, text: bytes) -> Self:
        """Build one from the `x-mock-fault` header's value."""
        return cls.from_json(json.loads(text))


NONE = Fault()


class Armed:
    """The faults that wait for their requests, oldest first."""

    def __init__(self) -> None:
        self._faults: list[tuple[Fault, int | None]] = []

    def arm(self, fault: Fault) -> None:
        """Add `fault` behind those already armed."""
        self._faults.append((fault, fault.times))

    def clear(self) -> None:
        """Drop every fault."""
        self._faults.clear()

    def take(self, leg: Leg) -> Fault:
        """The first fault that matches `leg`, its count lowered; `NONE` without one."""
        for index, (fault, left) in enumerate(self._faults):
            if fault.leg not in (None, leg):
                continue
            if left is not None:
                if left <= 1:
                    del self._faults[index]
                else:
                    self._faults[index] = (fault, left - 1)
            return fault
        return NONE
