"""The naive proxy that a router is compared with: FastAPI and httpx, bodies parsed and written again. WORKERS=url,url."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

WORKERS = os.environ["WORKERS"].split(",")
PATH = "/v1/chat/completions"
app = FastAPI()
client = httpx.AsyncClient(
    timeout=None, limits=httpx.Limits(max_connections=2000, max_keepalive_connections=2000)
)


@app.post(PATH, response_model=None)
async def chat(request: Request) -> Response:
    body = await request.json()
    session = hashlib.md5(request.headers.get("x-session-id", "").encode(), usedforsecurity=False).digest()
    url = WORKERS[session[0] % len(WORKERS)] + PATH
    if not body.get("stream"):
        answer = await client.post(url, json=body)
        return Response(answer.content, status_code=answer.status_code, media_type="application/json")

    async def pieces() -> AsyncIterator[bytes]:
        async with client.stream("POST", url, json=body) as answer:
            async for piece in answer.aiter_bytes():
                yield piece

    return StreamingResponse(pieces(), media_type="text/event-stream")
