"""Conversations replayed against a door: open loop by conversation, turns one after the other, tool times kept.

Promises: what is sent depends on seed and engine only, so each policy gets the same work; a turn that fails ends its
conversation and is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from .client import Answer, Refused, ask, body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .plan import Script

__all__ = ["Target", "Told", "replay"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where conversations are sent, and what their text is made of."""

    http: aiohttp.ClientSession
    url: str
    model: str
    pool: Sequence[int]
    seed: int
    salt: str
    timeout_s: float


@dataclass(slots=True)
class Told:
    """One conversation as its client saw it; seconds from the start of the replay."""

    script: Script
    start_s: float = 0.0
    done_s: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def ttfet_s(self) -> float | None:
        """From arrival to the first token that the user sees, all waits and tool times included."""
        at = self.script.visible
        if at >= len(self.answers):
            return None
        return self.answers[at].first_s - self.start_s - self.script.arrival_s

    @property
    def handoffs(self) -> int:
        """Turns whose KV came from another worker."""
        return sum("x-conserve-prefiller" in answer.headers for answer in self.answers)


async def replay(
    target: Target, scripts: Sequence[Script], *, done: Callable[[], None] = lambda: None
) -> list[Told]:
    """All conversations, each at its time; `done` hears of each that ended."""
    start_s = time.perf_counter()

    async def one(script: Script) -> Told:
        told = await _converse(target, script, start_s)
        done()
        return told

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(script)) for script in scripts]
    return [task.result() for task in tasks]


async def _converse(target: Target, script: Script, start_s: float) -> Told:
    told = Told(script, start_s=start_s)
    headers = {"X-Conversation-ID": script.id}
    history: list[int] = []
    await asyncio.sleep(max(0.0, start_s + script.arrival_s - time.perf_counter()))
    for number, step in enumerate(script.steps):
        if number:
            await asyncio.sleep(step.gap_s)
        prompt = history[: step.keep] + _new_tokens(target, script, number)
        request = body(target.model, prompt, output=step.output, salt=target.salt)
        # A conversation is due when it arrives, not when this process gets to it.
        ready_s = time.perf_counter() if number else start_s + script.arrival_s
        try:
            answer = await ask(target.http, target.url, request, headers=headers, timeout_s=target.timeout_s)
        except Refused as refused:
            told.failure = f"turn {number + 1}: {refused}"
            break
        told.ready_s.append(ready_s)
        told.answers.append(answer)
        history = prompt + answer.tokens
    told.done_s = time.perf_counter() - start_s
    # A door that is gone has failed turns to show for it.
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with target.http.delete(
            f"{target.url}/v1/conversations/{script.id}", headers=headers
        ) as response:
            await response.read()
    return told


def _new_tokens(target: Target, script: Script, number: int) -> list[int]:
    """The text that a turn adds, drawn anew for each turn; the first one may begin with the head that all share."""
    count = script.steps[number].append
    head = script.shared_head if number == 0 else 0
    shared = random.Random(f"{target.seed} head").choices(target.pool, k=head)  # noqa: S311 - text, no secret
    own = random.Random(f"{target.seed} {script.id} {number}")  # noqa: S311
    return shared + own.choices(target.pool, k=count - head)
