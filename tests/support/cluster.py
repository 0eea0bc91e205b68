"""A door over mock workers, on the test's own event loop; every scenario talks to it over HTTP only."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from conserve_workers.mock import MockWorker

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WAIT_S = 10.0
"""Upper bound for what must happen at once; only a failing test waits so long."""


class RunningDoor(Protocol):
    """What a scenario needs of a door, whichever it is."""

    url: str

    async def stop(self) -> None: ...

    def begin_stop(self) -> None: ...


class OpenDoor(Protocol):
    """Starts a door with these settings."""

    async def __call__(self, settings: dict[str, Any]) -> RunningDoor: ...


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of an error object, after a check of its shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str)
        assert error["message"], "an error says what happened"
        code: str | None = error["code"]
        return code

    @property
    def events(self) -> list[Any]:
        """The events of a stream, parsed; `[DONE]` stays a string."""
        assert self.body.endswith(b"\n\n"), self.body[-80:]
        found = []
        for block in self.body.decode().split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data:"):
                    text = line.removeprefix("data:").strip()
                    found.append(text if text == "[DONE]" else json.loads(text))
        return found

    @property
    def text(self) -> str:
        """The generated text, streamed or not."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            choice = self.json["choices"][0]
            return str(choice["message"]["content"] if "message" in choice else choice["text"])
        events = [event for event in self.events if isinstance(event, dict)]
        choices = [choice for event in events for choice in event.get("choices", [])]
        return "".join(
            (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
            for choice in choices
        )

    @property
    def decoder(self) -> str:
        return self.headers["x-conserve-decoder"]

    @property
    def turn(self) -> int:
        return int(self.headers["x-conserve-turn"])


def chat_body(*contents: str, **fields: Any) -> dict[str, Any]:
    """A chat request: user and assistant in turn, beginning with the user."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": text} for place, text in enumerate(contents or ("hello",))
    ]
    return {"model": "mock", "messages": messages, **fields}


@dataclass
class Cluster:
    """Mock workers, the door in front of them, and a client."""

    url: str
    prefillers: list[MockWorker]
    decoders: list[MockWorker]
    http: aiohttp.ClientSession
    door: RunningDoor
    _followed: set[str] = field(default_factory=set)

    @property
    def workers(self) -> list[MockWorker]:
        return [*self.prefillers, *self.decoders]

    def decoder(self, name: str) -> MockWorker:
        """The mock that the door calls `name`."""
        return self.decoders[int(name.removeprefix("d"))]

    def request(
        self,
        body: object,
        *,
        path: str = CHAT,
        conversation: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """A POST, not yet sent; `body` is bytes as they are, or JSON."""
        sent = dict(headers or {})
        sent.setdefault("content-type", "application/json")
        if conversation is not None:
            sent["x-conversation-id"] = conversation
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        return self.http.post(self.url + path, data=data, headers=sent)

    async def post(self, body: object, **options: Any) -> Answer:
        """POST and read the whole answer."""
        async with asyncio.timeout(WAIT_S * 3), self.request(body, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def chat(self, *contents: str, conversation: str | None = None, **fields: Any) -> Answer:
        """One chat turn, not streamed unless `stream=True` is among the fields."""
        return await self.post(chat_body(*contents, **fields), conversation=conversation)

    async def get(self, path: str, *, key: str | None = None) -> Answer:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self.http.get(self.url + path, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())

    async def delete(self, path: str, *, key: str | None = None) -> Answer:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self.http.delete(self.url + path, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())

    async def fleet(self) -> dict[str, Any]:
        fleet: dict[str, Any] = (await self.get("/v1/fleet?check=true")).json
        return fleet

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry `labels`."""
        total = 0.0
        for line in (await self.get("/metrics")).body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            metric, _, found = series.partition("{")
            if metric == name and all(f'{key}="{wanted}"' in found for key, wanted in labels.items()):
                total += float(value)
        return total

    async def settled(self) -> dict[str, Any]:
        """Wait until no request is under way, then the fleet, whose books must balance."""
        async with asyncio.timeout(WAIT_S):
            while (fleet := await self.fleet())["in_flight"] or fleet["waiting"]:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)
        assert fleet["check"] == "ok", fleet
        return fleet

    async def nothing_booked(self) -> None:
        """Nothing is under way and no block is booked."""
        fleet = await self.settled()
        assert fleet["booked_blocks"] == 0, "a request that failed leaves nothing booked"
        assert [row["queued_tokens"] for row in fleet["workers"]] == [0] * len(fleet["workers"])

    async def until_fleet(self, holds: Any) -> dict[str, Any]:
        """Wait until `holds(fleet)`; the fleet then."""
        async with asyncio.timeout(WAIT_S):
            while not holds(fleet := await self.fleet()):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)
        return fleet


@contextlib.asynccontextmanager
async def run_cluster(
    open_door: OpenDoor,
    *,
    prefillers: int = 1,
    decoders: int = 2,
    worker: dict[str, Any] | None = None,
    keep_down: int = 0,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """Start the mocks and a door over them; `keep_down`: so many decoders' ports refuse connections."""
    async with contextlib.AsyncExitStack() as stack:
        options = worker or {}
        ps = [MockWorker(role="prefiller", **options) for _ in range(prefillers)]
        ds = [MockWorker(role="decoder", **options) for _ in range(decoders)]
        for mock in (*ps, *ds):
            await stack.enter_async_context(mock)
        for mock in ds[:keep_down]:
            await mock.stop()
        chosen: dict[str, Any] = {
            "prefillers": [f"{mock.url},name=p{place}" for place, mock in enumerate(ps)],
            "decoders": [f"{mock.url},name=d{place}" for place, mock in enumerate(ds)],
            "probe_interval_s": 0.05,
            "queue_timeout_s": 5.0,
        }
        door = await open_door(chosen | settings)
        stack.push_async_callback(door.stop)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        )
        yield Cluster(door.url, ps, ds, http, door)
