"""The mock worker: vLLM's HTTP surface over `engine`, with the faults of `fault` and the memory of `record`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Literal, Self

from conserve_workers.tiny.errors import RequestError
from conserve_workers.tiny.server import parse

from . import answer
from .asked import Asked, Kind, prompt, read
from .engine import BLOCK_TOKENS, Handoff, PrefixCache
from .fault import Armed, Fault, Leg
from .http1 import Connection, Cut, Gone, Reply, Request
from .metrics import Counters, exposition
from .prompt import count, ids
from .record import Recorded

Role = Literal["prefiller", "decoder", "both"]
_COMPLETIONS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "text"}
_POSTED = frozenset((*_COMPLETIONS, "/tokenize"))


class MockWorker:
    """One fake worker; `async with MockWorker(role="decoder") as worker` serves it on a port of the system's choice."""

    def __init__(
        self,
        *,
        role: Role = "both",
        model: str = "mock",
        kv_blocks: int = 4096,
        block_size: int = BLOCK_TOKENS,
        max_model_len: int = 131_072,
        default_tokens: int = 8,
        lease_s: float = 30.0,
        interval_s: float = 0.0,
        max_body_bytes: int = 1 << 30,
        remember: bool = True,
    ) -> None:
        """A worker that does not serve yet.

        `default_tokens`: length of an answer to a request without `max_tokens`. `interval_s`: time from one token to the next,
        where no fault says another. `remember=False`: for load tests.
        """
        self.role: Role = role
        self.model = model
        self.kv_blocks = kv_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.requests: list[Recorded] = []
        self.probes = 0
        self.running = 0
        self.waiting = 0
        self.healthy = True
        self.tells: Literal["all", "nothing", "stalls"] = "all"
        self.faults = Armed()
        self._default_tokens = default_tokens
        self._interval_s = interval_s
        self._max_body_bytes = max_body_bytes
        self._lease_s = lease_s
        self._remember = remember
        self._connections: set[Connection] = set()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._arrival = asyncio.Condition()
        self.port = 0
        self._fresh()

    def _fresh(self) -> None:
        self.started_at_s = time.time()
        self.cache = PrefixCache()
        self.handoff = Handoff(lease_s=self._lease_s)
        self.counters = Counters()

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; `port` 0 takes a free one, or the one it had before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self._connections, self._all_gone),
            host,
            port or self.port,
            backlog=1024,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def drain(self) -> None:
        """Take no new requests, and wait for those under way."""
        self.healthy = False
        if self._server is not None:
            self._server.close()
        await self._idle.wait()

    async def stop(self) -> None:
        """Refuse new connections and reset those that are open, as a killed process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.cut(reset=True)
        await self._all_gone.wait()

    async def restart(self, *, after_stop: Callable[[], None] | None = None) -> None:
        """Stop, lose everything a process loses, listen again on the same port."""
        await self.stop()
        if after_stop is not None:
            after_stop()
        self._fresh()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def arm(self, fault: Fault) -> None:
        """Hurt the requests that match `fault`."""
        self.faults.arm(fault)

    def legs(self, leg: Leg) -> list[Recorded]:
        """The recorded requests of one leg."""
        return [request for request in self.requests if request.leg == leg]

    async def arrived(self, count: int, *, leg: Leg | None = None) -> Recorded:
        """Wait until `count` requests (of `leg`) have arrived; the last of them."""

        def matching() -> list[Recorded]:
            return [request for request in self.requests if leg in (None, request.leg)]

        async with self._arrival:
            await self._arrival.wait_for(lambda: len(matching()) >= count)
        return matching()[count - 1]

    async def _handle(self, request: Request, reply: Reply) -> None:
        if request.path in _POSTED:
            if request.method != "POST":
                await reply.whole(405, answer.error(f"{request.method} is not for {request.path}", 405))
            elif len(request.body) > self._max_body_bytes:
                await reply.whole(413, answer.error("the body is too large", 413))
            elif request.path == "/tokenize":
                await self._tokenize(request, reply)
            else:
                await self._complete(request, reply)
        elif request.path == "/health":
            self.probes += 1
            await reply.whole(200 if self.healthy else 503, b"")
        elif request.path == "/metrics" and self.tells == "stalls":
            await asyncio.Event().wait()
        elif request.path == "/metrics" and self.tells == "nothing":
            await reply.whole(500, answer.error("no metrics", 500))
        elif request.path == "/metrics":
            await reply.whole(200, exposition(self), content_type="text/plain; version=0.0.4; charset=utf-8")
        elif request.path == "/v1/models":
            await reply.whole(200, json.dumps(self._models()).encode())
        elif request.path.startswith("/mock/"):
            await self._control(request, reply)
        else:
            await reply.whole(404, b'{"detail":"Not Found"}')

    async def _tokenize(self, request: Request, reply: Reply) -> None:
        try:
            body = parse.body(request.body)
            tokens = ids(prompt(body, "chat" if "messages" in body else "text"))
        except RequestError as refused:
            await reply.whole(*_refused(refused))
            return
        told = {"tokens": tokens, "count": len(tokens), "max_model_len": self.max_model_len}
        await reply.whole(200, json.dumps(told).encode())

    def _models(self) -> dict[str, Any]:
        card = {
            "id": self.model,
            "object": "model",
            "created": int(self.started_at_s),
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.max_model_len,
        }
        return {"object": "list", "data": [card]}

    async def _control(self, request: Request, reply: Reply) -> None:
        if request.path == "/mock/faults" and request.method == "POST":
            try:
                faults = [Fault.from_json(value) for value in json.loads(request.body)]
            except (ValueError, TypeError) as error:
                await reply.whole(400, answer.error(str(error), 400))
                return
            for fault in faults:
                self.arm(fault)
            await reply.whole(200, json.dumps({"armed": len(faults)}).encode())
        elif request.path == "/mock/faults" and request.method == "DELETE":
            self.faults.clear()
            await reply.whole(200, b"{}")
        elif request.path == "/mock/requests" and request.method == "GET":
            await reply.whole(200, json.dumps([record.as_json() for record in self.requests]).encode())
        elif request.path == "/mock/requests" and request.method == "DELETE":
            self.requests.clear()
            await reply.whole(200, b"{}")
        else:
            await reply.whole(404, b'{"detail":"Not Found"}')

    async def _complete(self, request: Request, reply: Reply) -> None:
        body: dict[str, Any] = {}
        problem: RequestError | None = None
        try:
            body = parse.body(request.body)
        except RequestError as refused:
            problem = refused
        asked = body.get("kv_transfer_params")
        keeps = isinstance(asked, dict) and asked.get("do_remote_decode") is True
        leg: Leg = "prefill" if keeps and self._prefills(body) else "decode"
        loop = asyncio.get_running_loop()
        record = Recorded(leg, request.path, request.headers, request.body, body, loop.time(), keeps=keeps)
        if self._remember:
            async with self._arrival:
                self.requests.append(record)
                self._arrival.notify_all()
        by_header = next((value for name, value in request.headers if name == b"x-mock-fault"), None)
        reply.record = record
        reply.fault = self.faults.take(leg)
        if by_header is not None and (fault := Fault.from_header(by_header)).leg in (None, leg):
            reply.fault = fault
        self.running += 1
        self._idle.clear()
        try:
            await self._answer(record, reply, problem)
        except (asyncio.CancelledError, Gone):
            record.aborted = True
            raise
        finally:
            self.running -= 1
            record.ended_s = loop.time()
            record.done.set()
            if not self.running:
                self._idle.set()

    async def _answer(self, record: Recorded, reply: Reply, problem: RequestError | None) -> None:
        fault = reply.fault
        if fault.latency_s:
            await asyncio.sleep(fault.latency_s)
        if fault.stall_head:
            await asyncio.Event().wait()
        if fault.body is not None or fault.status is not None:
            status = fault.status or 200
            made = answer.error(f"mock fault {status}", status) if fault.body is None else fault.body.encode()
            await reply.whole(status, made)
            return
        try:
            if problem is not None:
                raise problem
            asked = read(
                record.json,
                _COMPLETIONS[record.path],
                model=self.model,
                max_model_len=self.max_model_len,
                default_tokens=self._default_tokens,
            )
            self._check_leg(record)
        except RequestError as refused:
            await reply.whole(*_refused(refused))
            return
        self._account(record, asked)
        held = -(-count(asked.prompt) // self.block_size)
        counters = self.counters
        counters.held_blocks += held
        try:
            if record.leg == "prefill":
                self.cache.add(asked.prompt, asked.salt)
                counters.ended["length"] += 1
                counters.generated_tokens += 1
                params = fault.params
                if params is None and not fault.no_params:
                    params = self.handoff.issue(count(asked.prompt), self.port)
                await reply.whole(200, answer.prefilled(asked, record.cached_tokens, params))
                return
            kept = self.handoff.issue(count(asked.prompt), self.port) if record.keeps else None
            written, why = await answer.generate(
                record, reply, asked, counters, interval_s=self._interval_s, kept=kept
            )
            counters.ended[why] += 1
        except (asyncio.CancelledError, Cut):
            counters.ended["abort"] += 1
            raise
        finally:
            counters.held_blocks -= held
        answered = f"<|assistant|>{written}" if asked.kind == "chat" else written
        self.cache.add(asked.prompt + answered.encode(), asked.salt)

    def _prefills(self, body: dict[str, Any]) -> bool:
        """Whether a request whose KV is to be kept is a prefill and not an answer.

        An engine does the same for both: it is the role that tells them apart, and of a worker with both roles the one token
        of a prefill.
        """
        if self.role == "both":
            return body.get("max_tokens") == 1 and body.get("stream") is not True
        return self.role == "prefiller"

    def _check_leg(self, record: Recorded) -> None:
        """What no router may do, and handoffs that fail.

        Raises:
            RequestError: with what a real engine would answer.
        """
        body = record.json
        if record.leg == "prefill":
            if body.get("stream") is True or body.get("max_tokens") != 1:
                raise RequestError("a prefill leg asks for one token, not streamed")
            if body.get("max_completion_tokens") not in (None, 1):
                raise RequestError("a prefill leg asks for one token")
        elif self.role == "prefiller":
            raise RequestError("this prefiller was sent a decode leg", status=500)
        elif body.get("kv_transfer_params") is not None and not record.keeps:
            try:
                record.transferred_tokens, record.stale = self.handoff.redeem(body["kv_transfer_params"])
            except ValueError as error:
                raise RequestError(f"KV load failed: {error}", status=500) from error

    def _account(self, record: Recorded, asked: Asked) -> None:
        length = count(asked.prompt)
        record.cached_tokens = min(self.cache.resident(asked.prompt, asked.salt), length)
        record.transferred_tokens = min(max(0, record.transferred_tokens - record.cached_tokens), length)
        record.computed_tokens = length - record.cached_tokens - record.transferred_tokens
        sources = self.counters.prompt_tokens_by_source
        sources["local_cache_hit"] += record.cached_tokens
        sources["external_kv_transfer"] += record.transferred_tokens
        sources["local_compute"] += record.computed_tokens


def _refused(refused: RequestError) -> tuple[int, bytes]:
    """Status and body of a refusal."""
    return refused.status, answer.error(str(refused), refused.status, param=refused.param, code=refused.code)
