"""`openai_routes` in somebody's own app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException

from conserve import Decoder, Prefiller, Router
from conserve.proxy import openai_routes
from conserve.settings import Settings
from conserve_workers.mock import MockWorker
from tests.support.cluster import chat_body


async def check_key(authorization: str = Header("")) -> None:
    if authorization != "Bearer sk-good":
        raise HTTPException(401, "who are you?")


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


@pytest.mark.parametrize("given", ["settings", "router"])
async def test_the_apps_dependencies_guard_the_routes_and_its_lifespan_runs_them(given: str) -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        events.append("up")
        yield
        events.append("down")

    async with MockWorker(role="prefiller") as p, MockWorker(role="decoder") as d:
        if given == "settings":
            routes = openai_routes(Settings(prefillers=p.url, decoders=d.url))
        else:
            routes = openai_routes(Router([Prefiller(p.url)], [Decoder(d.url, kv_blocks=512)]))
        app = FastAPI(lifespan=lifespan)
        app.include_router(routes, dependencies=[Depends(check_key)])

        @app.get("/mine")
        async def mine() -> str:
            return "mine"

        async with served(app) as url, aiohttp.ClientSession() as http:
            assert events == ["up"]
            chat = f"{url}/v1/chat/completions"
            async with http.post(chat, json=chat_body("hi")) as refused:
                assert refused.status == 401
            assert not p.requests
            good = {"authorization": "Bearer sk-good"}
            for stream in (True, False):
                async with http.post(chat, json=chat_body("hi", stream=stream), headers=good) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
            async with http.get(f"{url}/mine") as answer:
                assert await answer.json() == "mine"
        assert events == ["up", "down"]
        assert len(p.legs("prefill")) >= 1


async def test_below_a_prefix(tmp_path: object) -> None:
    async with MockWorker(role="both") as mock:
        app = FastAPI()
        app.include_router(openai_routes(Settings(both=mock.url)), prefix="/llm")
        async with served(app) as url, aiohttp.ClientSession() as http:
            async with http.post(f"{url}/llm/v1/chat/completions", json=chat_body("hi")) as answer:
                assert answer.status == 200
            async with http.get(f"{url}/llm/v1/fleet?check=true") as answer:
                fleet = await answer.json()
                assert fleet["check"] == "ok"
                assert [row["name"] for row in fleet["workers"]] == ["w0"], "named by role and place"
