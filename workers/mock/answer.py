"""The bytes of a mock's answers: error objects, completions, streams of server-sent events."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import time
from typing import Any

from .asked import Asked
from .engine import answer_words, until
from .http1 import Reply
from .metrics import Counters, Ended
from .prompt import count, ids
from .record import Recorded

_SERIAL = itertools.count(1)


def error(message: str, status: int, *, param: str | None = None, code: str | int | None = None) -> bytes:
    """An error object in the shape of vLLM's, whose code is the status where there is no better one."""
    kind = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}.get(
        status, "InternalServerError"
    )
    return _dump({"error": {"message": message, "type": kind, "param": param, "code": code or status}})


def prefilled(asked: Asked, cached_tokens: int, params: object) -> bytes:
    """The answer of a prefill leg: one token, the exact prompt size, what of it was cached, the handoff parameters."""
    usage = {
        "prompt_tokens": count(asked.prompt),
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    value = _whole(asked, ["x"], "length", usage)
    value["kv_transfer_params"] = params
    return _dump(value)


async def generate(
    record: Recorded,
    reply: Reply,
    asked: Asked,
    counters: Counters,
    *,
    interval_s: float,
    kept: dict[str, Any] | None,
) -> tuple[str, Ended]:
    """Write the answer of a decode leg, streamed or whole; the text it generated, and why it ended.

    `kept`: where its KV stays, of which only a whole answer tells.
    """
    fault, sampling = reply.fault, asked.sampling
    words = answer_words(
        asked.prompt,
        fault.tokens or sampling.max_tokens,
        size=fault.token_bytes,
        seed=sampling.seed if sampling.temperature > 0 else None,
    )
    if fault.text is not None:
        words = [fault.text] * len(words)
    if record.stale:
        words = ["stale "] * len(words)
    words, stopped = until(words, sampling.stop)
    prompt_tokens = count(asked.prompt)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(words),
        "total_tokens": prompt_tokens + len(words),
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens + record.transferred_tokens},
    }
    why: Ended = "stop" if stopped or fault.tool_call else "length"
    finish = "tool_calls" if fault.tool_call else why
    pace_s = fault.interval_s or interval_s
    if asked.how.stream:
        told = usage if asked.how.include_usage else None
        await _stream(reply, asked, words, finish, told, counters, pace_s)
    else:
        if pace_s:
            await asyncio.sleep(pace_s * len(words))
        counters.generated_tokens += len(words)
        value = _whole(asked, words, finish, usage)
        if fault.params is not None or kept is not None:
            value["kv_transfer_params"] = kept if fault.params is None else fault.params
        await reply.whole(200, _dump(value))
    return "".join(words), why


async def _stream(
    reply: Reply,
    asked: Asked,
    words: list[str],
    finish: str,
    usage: dict[str, Any] | None,
    counters: Counters,
    pace_s: float,
) -> None:
    fault = reply.fault
    headers = [("content-type", "text/event-stream; charset=utf-8")]
    if fault.gzip:
        headers.append(("content-encoding", "gzip"))
    await reply.head(200, headers)
    base = _base(asked, "chat.completion.chunk" if asked.kind == "chat" else "text_completion")
    prompt = {"prompt_token_ids": ids(asked.prompt)} if asked.how.token_ids else {}
    whole = bytearray()

    async def event(value: dict[str, Any] | None) -> None:
        data = b"data: %b\n\n" % (b"[DONE]" if value is None else _dump(value))
        if fault.gzip:
            whole.extend(data)
        else:
            await reply.write(data)

    if asked.kind == "chat":
        await event({**base, "choices": [_delta({"role": "assistant", "content": ""})], **prompt})
    for index, word in enumerate(words):
        if pace_s:
            await asyncio.sleep(pace_s)
        counters.generated_tokens += 1
        if asked.kind == "text":
            choice = {"index": 0, "text": word, "logprobs": None, "finish_reason": None}
            if index == 0:
                choice |= prompt
        elif fault.tool_call:
            call = {"index": 0, "function": {"arguments": word}}
            if index == 0:
                call |= {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": word}}
            choice = _delta({"tool_calls": [call]})
        else:
            choice = _delta({"content": word})
        if asked.how.token_ids:
            choice["token_ids"] = [_id(word)]
        await event({**base, "choices": [choice]})
    last = _delta({}) if asked.kind == "chat" else {"index": 0, "text": "", "logprobs": None}
    await event({**base, "choices": [{**last, "finish_reason": finish}]})
    if usage is not None:
        await event({**base, "choices": [], "usage": usage})
    if not fault.no_done:
        await event(None)
    if fault.gzip:
        await reply.write(gzip.compress(bytes(whole)))
    await reply.end()


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _whole(asked: Asked, words: list[str], finish: str, usage: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
    text = "".join(words)
    if asked.kind == "text":
        choice["text"] = text
    elif finish == "tool_calls":
        call = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": text}}
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        choice["message"] = {"role": "assistant", "content": text}
    named: dict[str, Any] = {}
    if asked.how.token_ids:
        choice["token_ids"] = [_id(word) for word in words]
        # vLLM names a chat's prompt beside its choices, a completion's in the choice.
        (named if asked.kind == "chat" else choice)["prompt_token_ids"] = ids(asked.prompt)
    kind = "chat.completion" if asked.kind == "chat" else "text_completion"
    return {
        **_base(asked, kind),
        "choices": [choice],
        "usage": usage,
        "kv_transfer_params": None,
        **named,
    }


def _base(asked: Asked, kind: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{next(_SERIAL)}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
    }


def _id(word: str) -> int:
    """A word is a token; of one that a fault made longer, its first bytes."""
    return ids(word.encode())[0]


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
