"""The agents' client reads a whole stream or says what was wrong with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from conserve.demo.client import Answer, ServingError, chat_body, stream_chat

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
GOOD = (
    {"prompt_token_ids": [1, 2, 3, 4, 5], "choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "sho"}, "token_ids": [6]}]},
    {"choices": [{"delta": {"content": "p"}, "token_ids": [7], "finish_reason": "stop"}]},
    {"choices": [], "usage": USAGE},
)


class Stub:
    """Answers with the events it is given; None ends the stream at once, without `[DONE]`."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.seen: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.hang = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen = await request.json()
        self.headers = dict(request.headers)
        if self.events == ["refuse"]:
            error = {"message": "no room", "code": "overloaded"}
            return web.json_response({"error": error}, status=429)
        if self.events == ["garbage"]:
            return web.Response(text="<html>", status=502)
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "x-conserve-decoder": "d1"}
        )
        await response.prepare(request)
        for event in self.events:
            if event == "hang":
                await self.hang.wait()
            elif event == "raw":
                await response.write(b"data: {half\n\n")
            elif event == "done":
                await response.write(b"data: [DONE]\n\n")
            else:
                data = b"data: " + json.dumps(event).encode() + b"\n\n"
                await response.write(data[:9])
                await response.write(data[9:])
        return response


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    stub = Stub()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", stub.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    stub.url = f"http://{host}:{port}"
    yield stub
    stub.hang.set()
    await runner.cleanup()


async def ask(stub: Stub, *, timeout_s: float = 10, pieces: list[str] | None = None) -> Answer:
    body = chat_body("demo", [{"role": "user", "content": "hello"}], max_tokens=8)
    async with aiohttp.ClientSession() as session:
        return await stream_chat(
            session,
            stub.url,
            body,
            headers={"X-Conversation-ID": "task-42"},
            timeout_s=timeout_s,
            on_text=(pieces if pieces is not None else []).append,
        )


async def test_whole_stream_gives_text_tokens_usage_and_headers(stub: Stub) -> None:
    stub.events = [*GOOD, "done"]
    pieces: list[str] = []
    answer = await ask(stub, pieces=pieces)
    assert (answer.text, pieces) == ("shop", ["sho", "p"])
    assert (answer.prompt_ids, answer.output_ids) == ((1, 2, 3, 4, 5), (6, 7))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (5, 2, 4)
    assert answer.headers["x-conserve-decoder"] == "d1"
    assert 0 < answer.ttft_s <= answer.elapsed_s
    assert stub.seen["temperature"] == 0
    assert stub.seen["stream_options"] == {"include_usage": True}
    assert stub.headers["X-Conversation-ID"] == "task-42"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["refuse"], "429: no room"),
        (["garbage"], "502: <html>"),
        ([*GOOD], r"without \[DONE\]"),
        ([*GOOD[:3], "done"], "no usage"),
        ([GOOD[1], "raw"], "is not one of chat completions"),
        ([[1, 2]], "is not one of chat completions"),
        (
            [GOOD[1], {"error": {"message": "decoder d0 was lost", "code": "worker_unavailable"}}],
            "decoder d0 was lost",
        ),
    ],
)
async def test_what_is_not_whole_is_an_error(stub: Stub, events: list[Any], message: str) -> None:
    stub.events = events
    with pytest.raises(ServingError, match=message) as caught:
        await ask(stub)
    if "429" in message:
        assert (caught.value.status, caught.value.code) == (429, "overloaded")
    if "lost" in message:
        assert (caught.value.text, caught.value.code) == ("sho", "worker_unavailable"), (
            "what had come is kept"
        )


async def test_silence_ends_with_the_timeout(stub: Stub) -> None:
    stub.events = [GOOD[1], "hang"]
    with pytest.raises(ServingError, match=r"no complete answer within 0\.3 s") as caught:
        await ask(stub, timeout_s=0.3)
    assert caught.value.text == "sho"


async def test_no_server_is_an_error(stub: Stub) -> None:
    stub.url = "http://127.0.0.1:1"
    with pytest.raises(ServingError, match="the connection broke"):
        await ask(stub)
