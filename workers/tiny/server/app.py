"""HTTP routes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from conserve_workers.tiny.errors import RequestError
from conserve_workers.tiny.request import Output
from conserve_workers.tiny.server import metrics, parse
from conserve_workers.tiny.server.answers import DONE, Answer, Kind, error, event
from conserve_workers.tiny.server.service import Service

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(service: Service, *, started_s: float) -> web.Application:
    """The application; `started_s` is the process's start in Unix time."""
    created = int(time.time())

    async def health(_request: web.Request) -> web.StreamResponse:
        trouble = service.trouble
        return web.json_response({"status": trouble or "ok"}, status=503 if trouble else 200)

    async def models(_request: web.Request) -> web.StreamResponse:
        _loaded, engine, _template = service.ready()
        name = service.options.model_name
        card = {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "conserve",
            "root": service.options.model,
            "parent": None,
            "max_model_len": engine.max_model_len,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def show_metrics(_request: web.Request) -> web.StreamResponse:
        engine = service.engine
        if engine is None:
            raise RequestError("the model is being loaded", status=503)
        page = metrics.render(engine.counters, service.options, started_s=started_s, exact=engine.exact)
        return web.Response(body=page.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def tokenize(request: web.Request) -> web.StreamResponse:
        _loaded, engine, _template = service.ready()
        fields = parse.body(await request.read())
        tokens = await service.tokenize(fields, "chat" if "messages" in fields else "text")
        return web.json_response(
            {"tokens": tokens, "count": len(tokens), "max_model_len": engine.max_model_len}
        )

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _complete(service, request, "chat")

    async def text(request: web.Request) -> web.StreamResponse:
        return await _complete(service, request, "text")

    app = web.Application(middlewares=[_errors], client_max_size=service.options.max_body_bytes)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", text)
    return app


async def _complete(service: Service, request: web.Request, kind: Kind) -> web.StreamResponse:
    service.ready()
    fields = parse.body(await request.read())
    how = parse.reply(fields)
    asked = await service.request(fields, kind)
    answer = Answer(kind, asked.id, service.options.model_name, asked.prompt, how.token_ids)
    async with service.run(asked) as outputs:
        # The first output decides the status: a handoff that fails must not look like a begun answer.
        output = await outputs.get()
        _raise_if_failed(output)
        if how.stream:
            return await _stream(request, answer, output, outputs, include_usage=how.include_usage)
        texts, tokens = [output.text], [*output.tokens]
        while output.finish_reason is None:
            output = await outputs.get()
            _raise_if_failed(output)
            texts.append(output.text)
            tokens += output.tokens
        return web.json_response(answer.whole("".join(texts), tokens, output))


async def _stream(
    request: web.Request,
    answer: Answer,
    output: Output,
    outputs: asyncio.Queue[Output],
    *,
    include_usage: bool,
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    try:
        await _send(response, answer, output, outputs, include_usage=include_usage)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        logger.exception("%s: request failed in its stream", request.path)
        failed = error("internal error; see the worker's log", status=500, code="internal_error")
        await response.write(event(failed) + DONE)
    await response.write_eof()
    return response


async def _send(
    response: web.StreamResponse,
    answer: Answer,
    output: Output,
    outputs: asyncio.Queue[Output],
    *,
    include_usage: bool,
) -> None:
    """Write the events of an answer whose first output is here."""
    opening = answer.first(usage=include_usage)
    if opening is not None:
        await response.write(event(opening))
    while True:
        if output.error is not None or output.finish_reason == "abort":
            await response.write(
                event(error(output.error or "aborted", status=500, code="engine_error")) + DONE
            )
            break
        await response.write(event(answer.piece(output, usage=include_usage)))
        if output.finish_reason is not None:
            end = event(answer.last(output)) if include_usage else b""
            await response.write(end + DONE)
            break
        output = await outputs.get()


def _raise_if_failed(output: Output) -> None:
    if output.finish_reason == "abort":
        raise RequestError(output.error or "aborted", code="service_unavailable", status=503)
    if output.error is not None:
        raise RequestError(output.error, code="engine_error", status=500)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what handlers raise into OpenAI error objects."""
    try:
        return await handler(request)
    except RequestError as refused:
        message, status, param, code = str(refused), refused.status, refused.param, refused.code
    except web.HTTPRequestEntityTooLarge as refused:
        message, status, param, code = (
            f"the body is too large: {refused.text}",
            413,
            None,
            "request_too_large",
        )
    except web.HTTPException as refused:
        message, status, param, code = (
            f"{request.method} {request.path}: {refused.reason}",
            refused.status,
            None,
            None,
        )
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        logger.exception("%s: request failed", request.path)
        message, status, param, code = "internal error; see the worker's log", 500, None, "internal_error"
    return web.json_response(_object(message, status, param, code), status=status)


def _object(message: str, status: int, param: str | None, code: str | None) -> dict[str, Any]:
    return error(message, status=status, param=param, code=code)
