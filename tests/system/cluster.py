"""A small cluster of real processes for the system tests: tiny engines with the random model, and the router."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from conserve.demo.client import READ_BUFFER_BYTES, Answer, Message, chat_body, stream_chat
from conserve.demo.cluster import MODEL_NAME, router_spec, worker_spec
from conserve.demo.facts import all_joined, all_settled
from conserve.demo.options import Options
from conserve.demo.scrape import Samples, get_json, get_samples
from conserve.supervisor import Fleet

START_TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class SmallCluster:
    """The processes and how to talk to them."""

    fleet: Fleet
    router: str
    workers: Mapping[str, str]
    session: aiohttp.ClientSession

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        conversation: str = "task-42",
        max_tokens: int = 12,
        timeout_s: float = 60,
        on_text: Callable[[str], None] = lambda _text: None,
    ) -> Answer:
        """One turn through the router."""
        return await stream_chat(
            self.session,
            self.router,
            chat_body(MODEL_NAME, messages, max_tokens=max_tokens),
            headers={"X-Conversation-ID": conversation},
            timeout_s=timeout_s,
            on_text=on_text,
        )

    async def fresh(self, worker: str, messages: Sequence[Message], *, max_tokens: int = 12) -> str:
        """What the engine answers without any KV of before: the salt makes its cached blocks unusable."""
        body = chat_body(MODEL_NAME, messages, max_tokens=max_tokens) | {"cache_salt": uuid.uuid4().hex}
        answer = await stream_chat(self.session, self.workers[worker], body, headers={}, timeout_s=60)
        assert answer.cached_tokens == 0, "a salted request finds nothing in the cache"
        return answer.text

    async def books(self) -> dict[str, Any]:
        """GET /v1/fleet with the router's own check of its bookings, once no turn is in flight."""
        await all_settled(self.session, self.router)
        view: dict[str, Any] = await get_json(self.session, f"{self.router}/v1/fleet?check=true")
        return view

    async def conversation(self, name: str = "task-42") -> dict[str, Any]:
        """GET /v1/conversations/NAME."""
        view: dict[str, Any] = await get_json(self.session, f"{self.router}/v1/conversations/{name}")
        return view

    async def metrics(self, worker: str) -> Samples:
        """What the engine says about itself."""
        return await get_samples(self.session, self.workers[worker])


@contextlib.asynccontextmanager
async def small_cluster(
    log_dir: Path,
    *,
    prefillers: int = 1,
    decoders: int = 2,
    kv_blocks: int = 640,
    router_env: Mapping[str, str] | None = None,
) -> AsyncIterator[SmallCluster]:
    """Start it, and leave no process behind."""
    options = Options(workdir=Path(), model="random")
    names = [f"p{number}" for number in range(prefillers)] + [f"d{number}" for number in range(decoders)]
    specs = [
        worker_spec(name, "prefiller" if name.startswith("p") else "decoder", options, kv_blocks=kv_blocks)
        for name in names
    ]
    async with (
        Fleet(log_dir=log_dir) as fleet,
        aiohttp.ClientSession(read_bufsize=READ_BUFFER_BYTES) as session,
    ):
        workers = await fleet.start(specs, timeout_s=START_TIMEOUT_S)
        router = await fleet.start([router_spec(workers, env=router_env)], timeout_s=START_TIMEOUT_S)
        await all_joined(session, router["router"], names, timeout_s=START_TIMEOUT_S)
        yield SmallCluster(fleet=fleet, router=router["router"], workers=workers, session=session)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
