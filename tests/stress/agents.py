"""Agents: each resends its whole history, which grows with every turn, and says how every request ended."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from collections import Counter
from typing import Any

import aiohttp

from tests.support.cluster import CHAT

# Every code an error may have when workers die and the line is full (src/error.rs).
NAMED = {
    "draining",
    "no_workers",
    "overloaded",
    "queue_timeout",
    "worker_protocol_error",
    "worker_timeout",
    "worker_unavailable",
}
TOKENS = 8
FIRST_BYTES = 2_000
GROWTH_BYTES = 1_000
LEAVE_CHANCE = 0.03
SLOW_CHANCE = 0.3
SLOW_MS = 20
"""A decoder that takes so long for each token, so that deaths meet streams under way."""
LEAVE_WITHIN_S = 0.1
HANG_S = 120.0
"""No request may take so long: above the sum of the door's time limits."""


@dataclasses.dataclass
class Tally:
    """What became of the requests, and what must not have happened."""

    ended: Counter[str] = dataclasses.field(default_factory=Counter)
    broken: Counter[str] = dataclasses.field(default_factory=Counter)
    took_s: list[float] = dataclasses.field(default_factory=list)
    sent_bytes: int = 0

    @property
    def requests(self) -> int:
        return sum(self.ended.values()) + sum(self.broken.values())


@dataclasses.dataclass
class Work:
    """What all agents share."""

    url: str
    http: aiohttp.ClientSession
    at_once: asyncio.Semaphore
    tally: Tally
    until: float
    """No turn begins after this moment of `time.monotonic()`."""


async def agent(work: Work, place: int, turns: int, chance: random.Random) -> None:
    """One conversation. Every fourth has no id and is known by its history; every other one with an id closes."""
    name = None if place % 4 == 3 else f"task-{place}"
    history: list[dict[str, Any]] = [_message("user", f"task {place} ", FIRST_BYTES, chance)]
    for turn in range(turns):
        async with work.at_once:
            if time.monotonic() > work.until:
                break
            text = await _turn(work, name, f"task-{place}.{turn}", history, chance)
        if text is not None:
            history.append({"role": "assistant", "content": text})
            history.append(_message("user", f"output {turn} ", GROWTH_BYTES, chance))
    if name is not None and place % 2 == 0:
        async with work.at_once, work.http.delete(f"{work.url}/v1/conversations/{name}") as response:
            await response.read()


async def _turn(
    work: Work, name: str | None, tag: str, history: list[dict[str, Any]], chance: random.Random
) -> str | None:
    """One request; the answer's text, which begins with `tag`, if all of it came."""
    is_stream, is_slow = chance.random() < 0.7, chance.random() < SLOW_CHANCE
    pace = f"interval_ms={SLOW_MS}" if is_stream else f"latency_ms={SLOW_MS * TOKENS}"
    told = f"mock chunks={TOKENS} echo={tag} {pace if is_slow else 'flat'}"
    body = {"user": told, "model": "m", "messages": history, "max_tokens": TOKENS, "stream": is_stream}
    asking = asyncio.create_task(_ask(work, name, body, tag))
    if chance.random() < LEAVE_CHANCE:
        await asyncio.wait({asking}, timeout=chance.random() * LEAVE_WITHIN_S)
        if asking.cancel():
            await asyncio.gather(asking, return_exceptions=True)
            work.tally.ended["client left"] += 1
            return None
    return await asking


async def _ask(work: Work, name: str | None, body: dict[str, Any], tag: str) -> str | None:
    headers = {"content-type": "application/json"}
    if name is not None:
        headers["x-conversation-id"] = name
    data = json.dumps(body).encode()
    work.tally.sent_bytes += len(data)
    began = time.monotonic()
    try:
        async with (
            asyncio.timeout(HANG_S),
            work.http.post(work.url + CHAT, data=data, headers=headers) as response,
        ):
            answer = await response.read()
    except TimeoutError:
        work.tally.broken["no answer"] += 1
        return None
    except aiohttp.ClientError as error:
        work.tally.broken[f"cut: {type(error).__name__}"] += 1
        return None
    work.tally.took_s.append(time.monotonic() - began)
    if response.status != 200:
        _count(work.tally, f"{response.status}", _error_of(answer))
        return None
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    return _streamed(work.tally, tag, answer) if is_stream else _whole(work.tally, tag, answer)


def _whole(tally: Tally, tag: str, answer: bytes) -> str | None:
    try:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        tally.broken["a whole answer that is none"] += 1
        return None
    return _judged(tally, tag, text)


def _streamed(tally: Tally, tag: str, answer: bytes) -> str | None:
    events = [block.removeprefix(b"data: ") for block in answer.split(b"\n\n") if block]
    if not events or not answer.endswith(b"\n\n"):
        tally.broken["a stream cut without a word"] += 1
        return None
    if events[-1] != b"[DONE]":
        _count(tally, "stream", _error_of(events[-1]))
        return None
    text = ""
    for event in events[:-1]:
        for choice in json.loads(event).get("choices", []):
            text += choice["delta"].get("content") or ""
    return _judged(tally, tag, text)


def _judged(tally: Tally, tag: str, text: str) -> str | None:
    """Any other text is an answer to somebody else, cut short, or from stale KV."""
    if text != tag + " tok" * (TOKENS - 1):
        tally.broken["wrong text"] += 1
        return None
    tally.ended["served"] += 1
    return text


def _count(tally: Tally, where: str, code: str | None) -> None:
    if code in NAMED:
        tally.ended[f"{where} {code}"] += 1
    else:
        tally.broken[f"{where} {code}"] += 1


def _error_of(answer: bytes) -> str | None:
    try:
        return str(json.loads(answer)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return None


def _message(role: str, start: str, size: int, chance: random.Random) -> dict[str, Any]:
    return {"role": role, "content": start + f"{chance.getrandbits(64):016x} " * (size // 17)}
