"""The bytes of a mock's answers: error objects, completions, streams of server-sent events."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import time
from typing import Any

from .engine import answer_words, prompt_text, tokens
from .http1 import Reply
from .record import Recorded

_SERIAL = itertools.count(1)


def error(message: str, status: int) -> bytes:
    """An error object in the shape of vLLM's."""
    kind = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}.get(
        status, "InternalServerError"
    )
    return _dump({"error": {"message": message, "type": kind, "param": None, "code": status}})


def prefilled(
    kind: str, model: str, prompt_tokens: int, cached_tokens: int, params: dict[str, Any] | None
) -> bytes:
    """The answer of a prefill leg: one token, the exact prompt size, what of it was cached, the handoff parameters."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    value = _whole(kind, model, "x", "length", usage)
    value["kv_transfer_params"] = params
    return _dump(value)


async def generate(record: Recorded, reply: Reply, model: str, kind: str, default_tokens: int) -> str:
    """Write the answer of a decode leg, streamed or whole; the text it generated."""
    fault, body = reply.fault, record.json
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or default_tokens
    words = answer_words(prompt_text(body), fault.tokens or asked, fault.token_bytes)
    if fault.text is not None:
        words = [fault.text] * len(words)
    if record.stale:
        words = ["stale "] * len(words)
    count = tokens(prompt_text(body))
    usage = {
        "prompt_tokens": count,
        "completion_tokens": len(words),
        "total_tokens": count + len(words),
        "prompt_tokens_details": {"cached_tokens": record.cached_tokens + record.transferred_tokens},
    }
    text = "".join(words)
    finish = "tool_calls" if fault.tool_call else "length"
    if body.get("stream") is not True:
        if fault.interval_s:
            await asyncio.sleep(fault.interval_s * len(words))
        await reply.whole(200, _dump(_whole(kind, model, text, finish, usage)))
        return text
    options = body.get("stream_options") or {}
    await _stream(reply, model, kind, words, finish, usage if options.get("include_usage") else None)
    return text


async def _stream(
    reply: Reply, model: str, kind: str, words: list[str], finish: str, usage: dict[str, Any] | None
) -> None:
    fault = reply.fault
    headers = [("content-type", "text/event-stream; charset=utf-8")]
    if fault.gzip:
        headers.append(("content-encoding", "gzip"))
    await reply.head(200, headers)
    base = {"id": f"cmpl-{next(_SERIAL)}", "object": kind, "created": int(time.time()), "model": model}
    if kind == "chat.completion":
        base["object"] = "chat.completion.chunk"
    whole = bytearray()

    async def event(value: dict[str, Any] | None) -> None:
        data = b"data: %b\n\n" % (b"[DONE]" if value is None else _dump(value))
        if fault.gzip:
            whole.extend(data)
        else:
            await reply.write(data)

    if kind == "chat.completion":
        await event({**base, "choices": [_delta({"role": "assistant", "content": ""})]})
    for index, word in enumerate(words):
        if fault.interval_s:
            await asyncio.sleep(fault.interval_s)
        if kind != "chat.completion":
            choice = {"index": 0, "text": word, "logprobs": None, "finish_reason": None}
        elif fault.tool_call:
            call = {"index": 0, "function": {"arguments": word}}
            if index == 0:
                call |= {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": word}}
            choice = _delta({"tool_calls": [call]})
        else:
            choice = _delta({"content": word})
        await event({**base, "choices": [choice]})
    last = _delta({}) if kind == "chat.completion" else {"index": 0, "text": "", "logprobs": None}
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


def _whole(kind: str, model: str, text: str, finish: str, usage: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
    if kind != "chat.completion":
        choice["text"] = text
    elif finish == "tool_calls":
        call = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": text}}
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        choice["message"] = {"role": "assistant", "content": text}
    return {
        "id": f"cmpl-{next(_SERIAL)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage,
        "kv_transfer_params": None,
    }


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
