"""Between HTTP handlers and the engine: who waits for which request, and whether new ones are taken."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from conserve_workers.tiny.chat import ChatTemplate
from conserve_workers.tiny.engine import Engine
from conserve_workers.tiny.errors import RequestError
from conserve_workers.tiny.handoff import params
from conserve_workers.tiny.model.load import Loaded
from conserve_workers.tiny.options import Options
from conserve_workers.tiny.request import Output, Request
from conserve_workers.tiny.server import parse
from conserve_workers.tiny.server.answers import Kind

_INLINE_BYTES = 8192


class Service:
    """State of one server. All methods run on its event loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.draining = False
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Queue[Output]] = {}
        self._ready: tuple[Loaded, Engine, ChatTemplate] | None = None

    def begin(self, loaded: Loaded) -> Engine:
        """Start the engine over a loaded model; from now on requests are served."""
        template = ChatTemplate(loaded.tokenizer)
        engine = Engine(loaded, self.options, self._sink)
        engine.start()
        self._ready = (loaded, engine, template)
        return engine

    @property
    def engine(self) -> Engine | None:
        """The engine, once there is one."""
        return None if self._ready is None else self._ready[1]

    @property
    def trouble(self) -> str | None:
        """Why requests are not served now, or None when they are."""
        if self._ready is None:
            return "the model is being loaded"
        if self.draining:
            return "the worker is shutting down"
        return self._ready[1].failure

    def ready(self) -> tuple[Loaded, Engine, ChatTemplate]:
        """What handlers need.

        Raises:
            RequestError: 503 while loading, while shutting down, or after the engine died.
        """
        trouble = self.trouble
        if trouble is not None or self._ready is None:
            raise RequestError(f"{trouble}; try another worker", code="service_unavailable", status=503)
        return self._ready

    async def tokenize(self, fields: Mapping[str, Any], kind: Kind) -> list[int]:
        """The prompt's tokens.

        Raises:
            RequestError: the prompt is missing, has the wrong type, or the template refuses it.
        """
        loaded, _engine, template = self.ready()
        if kind == "text":
            prompt = fields.get("prompt")
            if isinstance(prompt, list):
                return _checked_tokens(prompt, loaded.tokenizer.vocab)
            if not isinstance(prompt, str) or not prompt:
                raise RequestError("prompt must be a non-empty string or a list of token ids", param="prompt")
            text, special = prompt, True
        else:
            options = fields.get("chat_template_kwargs")
            if options is not None and not isinstance(options, dict):
                raise RequestError("chat_template_kwargs must be an object", param="chat_template_kwargs")
            text, special = (
                template.render(fields.get("messages"), tools=fields.get("tools"), options=options),
                False,
            )
        if len(text) <= _INLINE_BYTES:
            return loaded.tokenizer.encode(text, add_special_tokens=special)
        # Long histories take tens of milliseconds, which other clients' streams should not wait for.
        return await asyncio.to_thread(loaded.tokenizer.encode, text, add_special_tokens=special)

    async def request(self, fields: Mapping[str, Any], kind: Kind) -> Request:
        """Check a body and turn it into an engine request.

        Raises:
            RequestError: anything in it is wrong, too long or not supported.
        """
        _loaded, engine, _template = self.ready()
        parse.check_model(fields, self.options.model_name)
        parse.refuse_unsupported(fields, chat=kind == "chat")
        keep, remote = params.parse(fields.get("kv_transfer_params"))
        prompt = await self.tokenize(fields, kind)
        limit = engine.max_model_len
        room = limit - len(prompt)
        if room < 1:
            raise _too_long(f"the prompt has {len(prompt)} tokens", limit)
        settings = parse.sampling(
            fields, default_max_tokens=room if kind == "chat" else min(16, room), chat=kind == "chat"
        )
        if settings.max_tokens > room:
            raise _too_long(f"prompt and max_tokens are {len(prompt)} + {settings.max_tokens} tokens", limit)
        if remote is not None and remote.tokens != len(prompt):
            raise RequestError(
                f"kv_transfer_params speak of {remote.tokens} prompt tokens, this prompt has {len(prompt)}; "
                "prefiller and decoder must get the same prompt",
                param="kv_transfer_params",
                code="invalid_kv_transfer_params",
            )
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        return Request(
            id=f"{prefix}-{uuid.uuid4().hex}",
            prompt=tuple(prompt),
            sampling=settings,
            salt=parse.salt(fields),
            hand_off=keep,
            remote=remote,
        )

    @asynccontextmanager
    async def run(self, request: Request) -> AsyncIterator[asyncio.Queue[Output]]:
        """Submit a request; its outputs arrive in the queue. Left before the last one, the request is aborted."""
        _loaded, engine, _template = self.ready()
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._waiting[request.id] = outputs
        engine.submit(request)
        try:
            yield outputs
        finally:
            if self._waiting.pop(request.id, None) is not None:
                engine.abort(request.id)

    @property
    def waiting(self) -> int:
        """Requests whose answers are not complete."""
        return len(self._waiting)

    def _sink(self, outputs: list[Output]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            queue = self._waiting.get(output.request_id)
            if queue is None:
                continue
            if output.finish_reason is not None:
                del self._waiting[output.request_id]
            queue.put_nowait(output)


def _checked_tokens(prompt: list[Any], vocab: int) -> list[int]:
    if not prompt:
        raise RequestError("prompt must not be empty", param="prompt")
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        raise RequestError(
            "prompt must be one string or one list of token ids; batches are not supported", param="prompt"
        )
    if not all(0 <= token < vocab for token in prompt):
        raise RequestError(f"prompt has token ids outside 0 to {vocab - 1}", param="prompt")
    return prompt


def _too_long(what: str, limit: int) -> RequestError:
    return RequestError(
        f"this model's maximum context length is {limit} tokens, but {what}; shorten the messages or the answer",
        param="messages",
        code="context_length_exceeded",
    )
