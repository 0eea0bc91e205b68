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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vllm.servers import BLOCK_SIZE, NAME, Forge
from tests.workers.harness import Worker

START_S = 60.0
WAIT_S = 30.0
PATH = "/v1/completions"


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
class Door:
    """A running router."""

    worker: Worker

    def turn(self, body: dict[str, Any], conversation: str) -> Turn:
        """One turn, read whole."""
        with self.open(body, conversation) as response:
            raw = response.read()
            return Turn(
                response.status, {key.lower(): value for key, value in response.getheaders()}, json.loads(raw)
            )

    @contextmanager
    def open(self, body: dict[str, Any], conversation: str) -> Iterator[http.client.HTTPResponse]:
        """One turn whose answer the caller reads; leaving the block disconnects."""
        connection = self.worker.connect()
        headers = {"content-type": "application/json", "x-conversation-id": conversation}
        try:
            connection.request("POST", PATH, json.dumps(body).encode(), headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def fleet(self) -> dict[str, Any]:
        """GET /v1/fleet with the router's check of its own books."""
        view: dict[str, Any] = self.worker.get("/v1/fleet?check=true").body
        return view

    def health(self) -> dict[str, str]:
        """The health of each worker that is there, by name."""
        return {row["name"]: row["health"] for row in self.fleet()["workers"] if row["health"] != "lost"}

    def until(self, names: set[str]) -> None:
        """Wait until exactly these workers are ready. The router finds out by asking; so do we."""
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            if {name for name, health in self.health().items() if health == "ready"} == names:
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.health()} instead of {sorted(names)}")

    def assert_balanced(self) -> None:
        """Nothing is under way, and the books agree with the conversations."""
        fleet = self.fleet()
        assert fleet["check"] == "ok", fleet
        assert fleet["in_flight"] == 0
        assert [row["reserved_blocks"] for row in fleet["workers"]] == [0] * len(fleet["workers"])


@contextmanager
def door_over(forge: Forge, log: Path, **settings: object) -> Iterator[Door]:
    """A router over `p0`, `d0` and `d1`, once all of them have joined. `settings` are those of `conserve serve`."""
    command = [sys.executable, "-P", "-m", "conserve.cli", "serve", "--port", "0"]
    command += ["--prefiller", f"{forge['p0'].url},name=p0"]
    for name in ("d0", "d1"):
        command += ["--decoder", f"{forge[name].url},name={name}"]
    # Two cores and four engines: slow is not lost.
    chosen = {"block_size": BLOCK_SIZE, "probe_interval_s": 0.2, "probe_timeout_s": 20, **settings}
    env = {f"CONSERVE_{key.upper()}": str(value) for key, value in chosen.items()}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **env}
        ) as process,
    ):
        assert process.stdout is not None
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        try:
            serves = re.search(r"serves (\S+)/v1", process.stdout.readline())
            watchdog.cancel()
            assert serves, log.read_text()[-3000:]
            door = Door(Worker(serves[1], NAME, process, {}))
            door.until({"p0", "d0", "d1"})
            yield door
        finally:
            watchdog.cancel()
            process.terminate()
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
