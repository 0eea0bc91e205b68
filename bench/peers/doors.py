"""What does a pinned turn cost in both doors, beside nginx, which reads nothing of it?

Every target stands between the same load generator and the same two workers, one after the other in each round. What
counts is CPU time of the target's whole process tree for each request: on one machine, requests per second are those of the
whole set-up. Load generator and worker are programs of yours, so that they are not what limits:

    WORKER PORT CHUNKS INTERVAL_MS          answers OpenAI's routes, /health and /metrics
    LOADER -p PORT -c CONNECTIONS -d SECONDS -w 0 -n SESSIONS -k HEADER -f BODY
                                            closed loop; prints JSON with rps, p50, p99 (us), done, non200, errs; with cps for streams

usage: python bench/peers/doors.py --worker W --loader L --bodies FOLDER [--rounds 5] [--seconds 2] [--json FILE]

FOLDER holds body_1k.json, body_64k.json, body_512k.json and body_1k_s.json (streamed), in which the loader puts session names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NGINX = """
worker_processes 2; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 0; client_body_buffer_size 1m;
  client_body_temp_path {folder}/in; proxy_temp_path {folder}/out; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  upstream workers {{ hash $http_x_session_id consistent; {servers} keepalive 512; }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 100000000;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
CASES = {
    "1 KB": ("body_1k.json", 16, 1000),
    "64 KB": ("body_64k.json", 16, 200),
    "512 KB": ("body_512k.json", 8, 50),
    "streams": ("body_1k_s.json", 256, 1000),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    return found


def cpu_s(pid: int) -> float:
    total = 0
    for each in tree(pid):
        with contextlib.suppress(FileNotFoundError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total * TICK_S


def busy_s() -> float:
    """CPU time that the machine spent on anything."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) * TICK_S


def until_ready(port: int, pid: int) -> None:
    """Waits for the first turn that is answered; a target that ends meanwhile is told at once.

    Strangers' routers announce nothing, so they are asked again and again.
    """
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data=body)
    request.add_header("content-type", "application/json")
    ends = time.monotonic() + 30
    ended = os.pidfd_open(pid)
    try:
        while True:
            try:
                with urllib.request.urlopen(request, timeout=3) as answer:
                    answer.read()
                return
            except OSError:
                if time.monotonic() > ends:
                    raise
            if select.select([ended], [], [], 0.1)[0]:
                raise ChildProcessError(f"process {pid}, which was to serve port {port}, ended")
    finally:
        os.close(ended)


@contextlib.contextmanager
def running(*command: str) -> Iterator[int]:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def nginx(folder: Path, port: int, workers: list[int]) -> list[str]:
    servers = " ".join(f"server 127.0.0.1:{worker};" for worker in workers)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, servers=servers))
    return [shutil.which("nginx") or "/usr/sbin/nginx", "-p", str(folder), "-c", str(config)]


def door(kind: str, port: int, workers: list[int]) -> list[str]:
    decoders = [part for worker in workers for part in ("--decoder", f"http://127.0.0.1:{worker}")]
    command = [sys.executable, "-m", "conserve.cli", "serve", "--door", kind, "--port", str(port)]
    return [*command, *decoders, "--log-level", "warning"]


def measure(options: argparse.Namespace, port: int, pid: int | None, case: str) -> dict[str, Any]:
    body, connections, sessions = CASES[case]

    def load(seconds: float) -> dict[str, Any]:
        command = [options.loader, "-p", port, "-c", connections, "-d", seconds, "-w", 0, "-n", sessions]
        command += ["-k", "x-session-id", "-f", Path(options.bodies) / body]
        told: dict[str, Any] = json.loads(subprocess.check_output([str(part) for part in command]))
        return told

    load(0.5)
    busy, spent = busy_s(), 0.0 if pid is None else cpu_s(pid)
    began = time.monotonic()
    told = load(options.seconds)
    took = time.monotonic() - began
    spent = 0.0 if pid is None else cpu_s(pid) - spent
    unit = told["chunks"] if case == "streams" else told["done"]
    return {
        "rps": told["rps"],
        "chunks_per_s": told["cps"],
        "p50_us": told["p50"],
        "p99_us": told["p99"],
        "failed": told["non200"] + told["errs"],
        "cpu_us": spent / max(1, unit) * 1e6,
        "machine_busy": (busy_s() - busy) / took / (os.cpu_count() or 1),
    }


def spread(samples: list[float]) -> dict[str, float]:
    return {"median": statistics.median(samples), "least": min(samples), "most": max(samples)}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("worker", "loader", "bodies"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = [free_port(), free_port()]
        for worker in workers:
            pid = stack.enter_context(running(options.worker, str(worker), "64", "20"))
            until_ready(worker, pid)
        targets: dict[str, tuple[int, int | None]] = {"direct": (workers[0], None)}
        for name in ("nginx", "native", "fastapi"):
            port = free_port()
            command = nginx(folder, port, workers) if name == "nginx" else door(name, port, workers)
            pid = stack.enter_context(running(*command))
            targets[name] = (port, pid)
            until_ready(port, pid)
        for turn in range(options.rounds):
            for case in options.cases.split(","):
                for name, (port, pid) in targets.items():
                    sample = measure(options, port, pid, case)
                    samples.setdefault(case, {}).setdefault(name, []).append(sample)
                    print(f"round {turn + 1}: {case}: {name}: {sample}", flush=True)
    result: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "command": "python bench/peers/doors.py "
        f"--worker W --loader L --bodies FOLDER --rounds {options.rounds} --seconds {options.seconds:g}",
        "machine": {
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "note": "load generator, workers and target share the cores; machine_busy 1 means that others compete too",
        "cases": {},
    }
    for case, rows in samples.items():
        told = result["cases"][case] = {}
        for name, taken in rows.items():
            told[name] = {key: spread([sample[key] for sample in taken]) for key in taken[0]}
            pairs = zip(taken, rows["nginx"], strict=True)
            if name in ("native", "fastapi"):
                ratios = [mine["cpu_us"] / max(1e-9, theirs["cpu_us"]) for mine, theirs in pairs]
                told[name]["cpu_over_nginx"] = spread(ratios)
            row = told[name]
            print(
                f"{case:8} {name:8} {row['rps']['median']:9.0f} /s  {row['cpu_us']['median']:8.1f} us CPU"
                f"  [{row['cpu_us']['least']:.1f}-{row['cpu_us']['most']:.1f}]  p50 {row['p50_us']['median']:.0f} us"
                + (f"  {row['cpu_over_nginx']['median']:.2f}x nginx" if "cpu_over_nginx" in row else "")
            )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
