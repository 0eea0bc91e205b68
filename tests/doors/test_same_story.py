"""One story told to both doors: the same bytes, statuses and headers for the client, and the same counts in `/metrics`."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import CHAT, COMPLETIONS, Answer, Cluster, chat_body, run_cluster

from .conftest import DOORS

LONG = "a long task description " * 40
SETTINGS: dict[str, Any] = {
    "prefillers": 1,
    "decoders": 1,
    "probe_interval_s": 60.0,
    "queue_timeout_s": 0.2,
    "first_byte_timeout_s": 1.0,
    "answer_timeout_s": 1.0,
    "stream_idle_timeout_s": 0.3,
    "max_body_bytes": 100_000,
}
OURS = re.compile(r"^(x-conserve-|retry-after$|content-|allow$|cache-control$|www-authenticate$|x-engine$)")
"""Headers that a client may rely on; the others are the server's own: `date`, `server`, `connection`."""
CHANGES = re.compile(r'"(?:id|created)":(?:"[^"]*"|\d+),?|conversation [0-9a-f]{32}')
"""Of the engine, and the salted handle of a conversation."""
TIMES = re.compile(r"_bucket$|_sum$")

Told = list[tuple[str, int, list[tuple[str, str]], str]]


async def requests(c: Cluster) -> AsyncIterator[tuple[str, Answer]]:
    """The story, a request after the other."""
    prefiller, decoder = c.prefillers[0], c.decoders[0]

    async def hurt(fault: Fault, *contents: str, **fields: Any) -> Answer:
        (prefiller if fault.leg == "prefill" else decoder).arm(fault)
        try:
            return await c.chat(*(contents or ("hi",)), **fields)
        finally:
            decoder.faults.clear()
            prefiller.faults.clear()

    asked: dict[str, Callable[[], Coroutine[Any, Any, Answer]]] = {
        "models": lambda: c.get("/v1/models"),
        "health": lambda: c.get("/healthz"),
        "ready": lambda: c.get("/readyz"),
        "first turn": lambda: c.chat(LONG, conversation="a", max_tokens=4, stream=True),
        "second turn": lambda: c.chat(LONG, "x", "more", conversation="a", max_tokens=4),
        "third turn, with usage": lambda: c.chat(
            LONG, "x", "more", "y", "z", conversation="a", stream=True, stream_options={"include_usage": True}
        ),
        "by its history": lambda: c.chat(LONG, "x", "nobody", max_tokens=2),
        "completion": lambda: c.post({"model": "mock", "prompt": LONG, "max_tokens": 3}, path=COMPLETIONS),
        "tool call": lambda: hurt(Fault(leg="decode", tool_call=True), conversation="tool"),
        "gzip": lambda: hurt(Fault(leg="decode", gzip=True), conversation="gzip"),
        "engine's header": lambda: hurt(Fault(leg="decode", headers={"x-engine": "e7"})),
        "prefiller 500": lambda: hurt(Fault(leg="prefill", status=500), LONG, conversation="b"),
        "prefiller 503": lambda: hurt(Fault(leg="prefill", status=503, headers={"retry-after": "3"})),
        "prefiller garbage": lambda: hurt(Fault(leg="prefill", body="[]"), LONG, stream=True),
        "handoff fails once": lambda: hurt(Fault(leg="decode", status=500, times=1), LONG),
        "decoder 500": lambda: hurt(Fault(leg="decode", status=500)),
        "decoder 429": lambda: hurt(Fault(leg="decode", status=429, headers={"retry-after": "7"})),
        "decoder 503": lambda: hurt(Fault(leg="decode", status=503), stream=True),
        "decoder 422": lambda: hurt(Fault(leg="decode", status=422)),
        "decoder garbage": lambda: hurt(Fault(leg="decode", body="<html>")),
        "decoder hangs": lambda: hurt(Fault(leg="decode", stall_head=True)),
        "stream resets": lambda: hurt(Fault(leg="decode", reset_at=900), stream=True, max_tokens=20),
        "stream closes": lambda: hurt(Fault(leg="decode", close_at=900), stream=True, max_tokens=20),
        "stream stalls": lambda: hurt(Fault(leg="decode", stall_at=900), stream=True, max_tokens=20),
        "stream without its end": lambda: hurt(Fault(leg="decode", no_done=True), stream=True),
        "not JSON": lambda: c.post(b"{"),
        "empty": lambda: c.post(b""),
        "no messages": lambda: c.post({"model": "mock"}),
        "unknown model": lambda: c.post(chat_body("hi") | {"model": "other"}),
        "too long": lambda: c.chat("x" * 99_000),
        "too large": lambda: c.post(b" " * 100_001),
        "no such route": lambda: c.get("/v1/nothing"),
        "wrong method": lambda: c.get(CHAT),
        "no such conversation": lambda: c.delete("/v1/conversations/nobody"),
        "closed": lambda: c.delete("/v1/conversations/a"),
        "after it was closed": lambda: c.chat(LONG, conversation="a", max_tokens=1),
    }
    for name, ask in asked.items():
        yield name, await ask()
    decoder.arm(Fault(leg="decode", stall_at=700, times=1))
    body = chat_body("hi", stream=True, max_tokens=20)
    async with c.request(body, conversation="leaves") as response:
        await response.content.readany()
        request = decoder.requests[-1]
    await request.done.wait()


async def story(door: str) -> tuple[Told, dict[str, str], dict[str, float]]:
    """What the client saw, the kind of each series of `/metrics`, and the values of those that count."""
    seen: Told = []
    async with run_cluster(DOORS[door], worker={"max_model_len": 20_000}, **SETTINGS) as c:
        async for name, answer in requests(c):
            headers = [(key.lower(), value) for key, value in answer.headers.items()]
            kept = sorted(
                (key, "" if key == "x-conserve-conversation" else value)
                for key, value in headers
                if OURS.match(key)
            )
            gzipped = dict(headers).get("content-encoding") == "gzip"
            body = "" if gzipped else CHANGES.sub("", answer.body.decode())
            kept = [(key, value) for key, value in kept if key != "content-length" or not gzipped]
            seen.append((name, answer.status, kept, body))
        await c.settled()
        text = (await c.get("/metrics")).body.decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    series, counts = {}, {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        key, _, value = line.rpartition(" ")
        metric = key.partition("{")[0]
        base = re.sub(r"_(bucket|sum|count)$", "", metric)
        kind = kinds.get(metric) or kinds[base]
        series[key] = kind
        if kind in ("counter", "histogram") and not TIMES.search(metric) and "seconds_total" not in metric:
            counts[key] = float(value)
    return seen, series, counts


@pytest.mark.timeout(120)
async def test_both_doors_tell_the_client_and_the_operator_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for door in ("fastapi", "native"):
        monkeypatch.setattr(
            "conserve_workers.mock.answer._SERIAL", itertools.count(1_000)
        )  # ids of one length
        told.append(await story(door))
    fastapi, native = told
    assert [name for name, *_ in fastapi[0]] == [name for name, *_ in native[0]]
    for one, other in zip(fastapi[0], native[0], strict=True):
        assert one == other
    assert fastapi[1] == native[1], "names, labels and kinds of every series"
    differing = {
        key: (fastapi[2][key], native[2][key]) for key in fastapi[2] if fastapi[2][key] != native[2][key]
    }
    assert not differing, "FastAPI's count, the native door's"
    assert sum(value > 0 for value in native[2].values()) > 30, "the story moves many counters"
