"""`conserve serve` in front of real engines, and what a client sees of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.vllm.servers import BLOCK_SIZE, NAME, Forge
from tests.workers.harness import Worker

START_S = 60.0
WAIT_S = 30.0
PATH = "/v1/completions"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer through the router."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        assert self.status == 200, self.body
        ids: list[int] = self.body["choices"][0]["token_ids"]
        return ids

    @property
    def decoder(self) -> str:
        """Who answered."""
        return self.headers["x-conserve-decoder"]


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream through the router, read to its end."""

    status: int
    headers: Mapping[str, str]
    events: list[Any]
    """The events as JSON, without `[DONE]`; of an answer that is no stream, the one object that it is."""

    @property
    def errors(self) -> list[Any]:
        """What the client was told went wrong."""
        return [event["error"] for event in self.events if "error" in event]

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        assert self.status == 200, self.events
        assert not self.errors
        choices = [choice for event in self.events for choice in event["choices"]]
        return [token for choice in choices for token in choice.get("token_ids") or ()]


@dataclass(frozen=True, slots=True)
class Door:
    """A running router."""

    worker: Worker

    def turn(self, body: dict[str, Any], conversation: str, *, path: str = PATH) -> Turn:
        """One turn, read whole."""
        with self.open(body, conversation, path=path) as response:
            raw = response.read()
            return Turn(
                response.status, {key.lower(): value for key, value in response.getheaders()}, json.loads(raw)
            )

    def stream(self, body: dict[str, Any], conversation: str, *, path: str = PATH) -> Streamed:
        """One streamed turn, read whole."""
        with self.open({**body, "stream": True}, conversation, path=path) as response:
            raw = response.read().decode()
            headers = {key.lower(): value for key, value in response.getheaders()}
            if not headers["content-type"].startswith("text/event-stream"):
                return Streamed(response.status, headers, [json.loads(raw)])
            data = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
            return Streamed(response.status, headers, [json.loads(each) for each in data if each != "[DONE]"])

    @contextmanager
    def open(
        self, body: dict[str, Any], conversation: str, *, path: str = PATH
    ) -> Iterator[http.client.HTTPResponse]:
        """One turn whose answer the caller reads; leaving the block disconnects."""
        connection = self.worker.connect()
        headers = {"content-type": "application/json", "x-conversation-id": conversation}
        try:
            connection.request("POST", path, json.dumps(body).encode(), headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def fleet(self) -> dict[str, Any]:
        """GET /v1/fleet with the router's check of its own books."""
        view: dict[str, Any] = self.worker.get("/v1/fleet?check=true").body
        return view

    def counter(self, name: str) -> float:
        """A sample of the router's own page: `name` or `name{kind}`."""
        page = self.worker.send("GET", "/metrics")[1].decode()
        bare, _, label = name.partition("{")
        total = 0.0
        for line in page.splitlines():
            if line.startswith((f"{bare} ", f"{bare}{{")) and label.rstrip("}") in line:
                total += float(line.rpartition(" ")[2])
        return total

    def await_counter(self, name: str, least: float) -> None:
        """Wait until a count is there."""
        _await_until(lambda: self.counter(name), lambda got: got >= least, f"{name} of at least {least}")

    def await_equal(self, name: str, wanted: float) -> None:
        """Wait until a sample has a value. Batches of KV events are under way for as long as they are."""
        _await_until(lambda: self.counter(name), lambda got: got == wanted, f"{name} of {wanted}")

    def await_in_flight(self, number: int) -> None:
        """Wait until so many turns are under way."""
        _await_until(
            lambda: self.fleet()["in_flight"], lambda got: got == number, f"{number} turns in flight"
        )

    def health(self) -> dict[str, str]:
        """The health of each worker that is there, by name."""
        return {row["name"]: row["health"] for row in self.fleet()["workers"] if row["health"] != "lost"}

    def row(self, name: str) -> dict[str, Any]:
        """One worker as /v1/fleet shows it."""
        rows: list[dict[str, Any]] = [row for row in self.fleet()["workers"] if row["name"] == name]
        return rows[-1]

    def until(self, names: set[str]) -> None:
        """Wait until exactly these workers are ready."""
        _await_until(
            self.health,
            lambda found: {name for name, health in found.items() if health == "ready"} == names,
            f"workers ready: {sorted(names)}",
        )

    def assert_balanced(self) -> None:
        """Nothing is under way, and the books agree with the conversations."""
        fleet = self.fleet()
        assert fleet["check"] == "ok", fleet
        assert fleet["in_flight"] == 0
        assert [row["reserved_blocks"] for row in fleet["workers"]] == [0] * len(fleet["workers"])


def _await_until(ask: Callable[[], T], holds: Callable[[T], bool], what: str) -> None:
    """Wait until what is asked for holds. A router's pages are all that tells, and nothing says when they change; so we ask."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds(got := ask()):
        assert time.monotonic() < deadline_s, f"{got!r} instead of {what}"
        time.sleep(0.02)


@contextmanager
def door_over(
    forge: Forge,
    log: Path,
    *,
    prefillers: Sequence[str] = ("p0",),
    decoders: Sequence[str] = ("d0", "d1"),
    options: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Door]:
    """A router over servers of the forge, once all of them have joined. `settings` are those of `conserve serve`.

    `options` is what is said of a decoder beside its name, `kv_events=...` for one.
    """
    command = [sys.executable, "-P", "-m", "conserve.cli", "serve", "--port", "0"]
    for name in prefillers:
        command += ["--prefiller", f"{forge[name].url},name={name}"]
    for name in decoders:
        further = f",{options[name]}" if options and name in options else ""
        command += ["--decoder", f"{forge[name].url},name={name}{further}"]
    # Two cores and four engines: slow is not lost.
    chosen = {"block_size": BLOCK_SIZE, "probe_interval_s": 0.2, "probe_timeout_s": 20, **settings}
    env = {f"CONSERVE_{key.upper()}": str(value) for key, value in chosen.items()}
    with router(command, env, log) as door:
        door.until({*prefillers, *decoders})
        yield door


@contextmanager
def router(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[Door]:
    """`conserve serve`, for the length of the block."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **env}
        ) as process,
    ):
        assert process.stdout is not None
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        try:
            serves = re.search(r"serves (\S+)/v1", process.stdout.readline())
            watchdog.cancel()
            assert serves, log.read_text()[-3000:]
            yield Door(Worker(serves[1], NAME, process, {}))
        finally:
            watchdog.cancel()
            process.terminate()
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
