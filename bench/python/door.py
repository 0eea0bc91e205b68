"""What does the FastAPI door cost per request, and how does it compare with a naive FastAPI + httpx proxy?

Three processes on one machine: a mock worker, the proxy under test, and this load generator (closed loop, `--clients`
connections, turns 2..n of one conversation each, streamed). CPU time of the proxy's process is the figure that a busy
machine does not blur; requests per second is what the whole set-up reached.

usage: python bench/python/door.py [--clients 16] [--seconds 5] [--rounds 5] [--body-bytes 4096] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAIVE = """
import sys, httpx, uvicorn
from contextlib import asynccontextmanager
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

@asynccontextmanager
async def lifespan(app):
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as app.state.client:
        yield

app = FastAPI(lifespan=lifespan)

@app.post("/v1/chat/completions")
async def chat(request: Request):
    body = await request.json()
    client = request.app.state.client
    if not body.get("stream"):
        answer = await client.post(sys.argv[1] + "/v1/chat/completions", json=body)
        return Response(answer.content, status_code=answer.status_code, media_type="application/json")
    async def stream():
        async with client.stream("POST", sys.argv[1] + "/v1/chat/completions", json=body) as answer:
            async for piece in answer.aiter_bytes():
                yield piece
    return StreamingResponse(stream(), media_type="text/event-stream")

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("http://127.0.0.1:%d" % self.servers[0].sockets[0].getsockname()[1], flush=True)

Server(uvicorn.Config(app, port=0, log_level="error", access_log=False)).run()
"""


class Process:
    """A child whose first line of output names its URL."""

    def __init__(self, *command: str) -> None:
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"{command} did not start: {line!r}")
        self.url = "http://" + line.partition("http://")[2].split("/")[0].split('"')[0].split()[0]

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()


async def load(url: str, clients: int, seconds: float, body: bytes) -> list[float]:
    """Latency of each request, in seconds."""
    host, _, port = url.removeprefix("http://").partition(":")
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    async def client(place: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nx-conversation-id: c{place}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        request = head.encode() + body
        while (began := time.perf_counter()) < ends:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            await reader.readuntil(b"\r\n0\r\n\r\n")
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client(place) for place in range(clients)))
    return latencies


def measure(process: Process, arguments: argparse.Namespace, body: bytes) -> dict[str, float]:
    asyncio.run(load(process.url, arguments.clients, 1.0, body))
    cpu_s, began = process.cpu_s(), time.perf_counter()
    latencies = sorted(asyncio.run(load(process.url, arguments.clients, arguments.seconds, body)))
    took_s, cpu_s = time.perf_counter() - began, process.cpu_s() - cpu_s
    count = len(latencies)
    return {
        "requests_per_s": count / took_s,
        "cpu_us_per_request": cpu_s / count * 1e6,
        "p50_ms": latencies[count // 2] * 1e3,
        "p99_ms": latencies[int(count * 0.99)] * 1e3,
        "max_ms": latencies[-1] * 1e3,
        "requests": count,
    }


def main() -> None:
    """Measure, print, maybe write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body-bytes", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    message = {"role": "user", "content": "x" * arguments.body_bytes}
    body = json.dumps({"model": "mock", "messages": [message], "stream": True, "max_tokens": 8}).encode()
    worker = Process(
        sys.executable, "-m", "conserve_workers.mock", "--role", "both", "--kv-blocks", "1000000", "--forget"
    )
    doors = {
        "direct": worker,
        "naive": Process(sys.executable, "-c", NAIVE, worker.url),
        "conserve": Process(
            sys.executable,
            "-m",
            "conserve.cli",
            "serve",
            "--port",
            "0",
            "--decoder",
            worker.url,
            "--log-level",
            "error",
        ),
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in doors}
    try:
        for _ in range(arguments.rounds):
            for name, process in doors.items():
                rounds[name].append(measure(process, arguments, body))
    finally:
        for process in doors.values():
            process.stop()
    figures: dict[str, Any] = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    }
    for name, found in figures.items():
        print(f"{name:9}", "  ".join(f"{key} {value:9.1f}" for key, value in found.items()))
    ratios = {
        key: figures["conserve"][key] / figures["naive"][key]
        for key in ("requests_per_s", "cpu_us_per_request")
    }
    print("conserve / naive:", "  ".join(f"{key} {value:.2f}" for key, value in ratios.items()))
    if arguments.json is not None:
        told = {
            "question": (__doc__ or "").splitlines()[0],
            "command": sys.argv,
            "machine": {
                "cpus": os.cpu_count(),
                "load_average": os.getloadavg(),
                "python": platform.python_version(),
                "system": platform.platform(),
            },
            "commit": subprocess.run(
                ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
            ).stdout.strip(),
            "rounds": rounds,
            "median": figures,
            "conserve_over_naive": ratios,
        }
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
