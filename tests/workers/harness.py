"""Start workers as processes and talk to them, for tests here and in `tests/contract`."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

START_S = 60.0
WAIT_S = 20.0
PREFILL_ONLY = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker's address, and its process."""

    url: str
    model: str
    process: subprocess.Popen[str]
    ready: dict[str, Any]

    def connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.url)
        return http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        status, body = self.send("GET", path)
        return Reply(status, json.loads(body))

    def post(self, path: str, body: dict[str, Any] | bytes) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps({"model": self.model, **body}).encode()
        status, answer = self.send("POST", path, raw)
        return Reply(status, json.loads(answer))

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})

    def complete(self, prompt: Any, **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})

    def stream(self, path: str, **fields: Any) -> Iterator[Any]:
        """Events of a streamed answer; `"[DONE]"` comes as that string. Closing the iterator disconnects."""
        connection = self.connect()
        body = json.dumps({"model": self.model, "temperature": 0, "stream": True, **fields}).encode()
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        try:
            for line in response:
                text = line.decode().rstrip("\n")
                if text.startswith("data: "):
                    yield "[DONE]" if text == "data: [DONE]" else json.loads(text.removeprefix("data: "))
        finally:
            response.close()
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Samples by name, with the distinguishing label where there is one: `name{reason}`."""
        status, body = self.send("GET", "/metrics")
        assert status == 200
        samples: dict[str, float] = {}
        for line in body.decode().splitlines():
            if line.startswith("#"):
                continue
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()  # type: ignore[union-attr]
            own = re.search(r'(?:source|finished_reason|reason)="(\w+)"', labels or "")
            samples[f"{name}{{{own[1]}}}" if own else name] = float(value)
        return samples

    def await_metric(self, name: str, value: float) -> float:
        """Ask until a sample has a value; fails with the last one after a while. Asking is the only way to know."""
        latest = float("nan")
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            latest = self.metrics()[name]
            if latest == value:
                return latest
        raise AssertionError(f"{name} is {latest}, not {value}")


def tiny(*options: str, model: str = "random") -> AbstractContextManager[Worker]:
    """A tiny engine for the length of a block."""
    return started("conserve_workers.tiny", "--model", model, "--idle-exit-with-parent", *options)


def mock(*options: str) -> AbstractContextManager[Worker]:
    """A mock for the length of a block; it takes a moment for each token, as an engine does."""
    return started("conserve_workers.mock", "--interval-s", "0.001", *options)


@contextmanager
def started(module: str, *options: str) -> Iterator[Worker]:
    """A worker for the length of a block; it must end with status 0 on SIGTERM unless it is dead already."""
    command = [sys.executable, "-m", module, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        watchdog.cancel()
        ready = json.loads(line)
        assert ready["event"] == "ready", ready
        yield Worker(ready["url"], ready["model"], process, ready)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
    finally:
        watchdog.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


def hand_over(prefiller: Worker, decoder: Worker, path: str, body: dict[str, Any]) -> Reply:
    """What a router does with a first turn: prefill there, continue here."""
    return decoder.post(path, {**body, "kv_transfer_params": prefill(prefiller, path, body)})


def prefill(prefiller: Worker, path: str, body: dict[str, Any]) -> dict[str, Any]:
    first = prefiller.post(path, {**body, "max_tokens": 1, "kv_transfer_params": PREFILL_ONLY})
    assert first.status == 200, first.body
    params: dict[str, Any] = first.body["kv_transfer_params"]
    return params


def text_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    choice = reply.body["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text
