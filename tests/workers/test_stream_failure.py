"""An exception of ours in the middle of a stream is an event in it, followed by its end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from conserve_workers.tiny.request import Output
from conserve_workers.tiny.server import app as server
from conserve_workers.tiny.server.answers import Answer


class BrokenAnswer(Answer):
    def piece(self, output: Output, *, usage: bool) -> dict[str, Any]:
        raise RuntimeError("a mistake of ours")


async def broken_stream(request: web.Request) -> web.StreamResponse:
    answer = BrokenAnswer("chat", "chatcmpl-1", "random", (1, 2, 3))
    return await server._stream(
        request, answer, Output("chatcmpl-1", "text"), asyncio.Queue(), include_usage=False
    )


async def broken_before(request: web.Request) -> web.StreamResponse:
    raise RuntimeError("a mistake of ours")


async def test_failure_in_mid_stream_is_told_in_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    app = web.Application(middlewares=[server._errors])
    app.router.add_get("/stream", broken_stream)
    app.router.add_get("/before", broken_before)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(f"{url}/stream") as response:
                assert response.status == 200
                events = (await response.text()).strip().split("\n\n")
                assert '"code":"internal_error"' in events[-2]
                assert events[-1] == "data: [DONE]"
            async with session.get(f"{url}/before") as response:
                assert (response.status, (await response.json())["error"]["code"]) == (500, "internal_error")
    finally:
        await runner.cleanup()
