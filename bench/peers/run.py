"""Which router costs least? Doors, nginx, vllm-router, sglang-router and a naive proxy, side by side in one run.

Every round starts each target in turn between the same load generator and the same two workers (`workers/mock/fast`). What
counts is CPU time of the target's whole process tree for each request; each cell waits for a quiet machine and records the
CPU that strangers took. Peers are installed from PyPI into `.cache/peers`; nginx is left out where there is none.

usage: python bench/peers/run.py [--quick] [--no-gate] [--minutes 8.5] [--rounds 3] [--targets a,b] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
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

sys.path.insert(0, str(Path(__file__).parent))
import bodies
import doors

ROOT = Path(__file__).resolve().parents[2]
PEERS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
SIZES = {"1KB": 1 << 10, "64KB": 64 << 10, "512KB": 512 << 10}
CLOSED = {"1KB": (16, 1000), "64KB": (16, 200), "512KB": (8, 50)}
RATES = {"1KB": 200, "64KB": 50, "512KB": 10}
TARGETS = ["direct", "nginx", "native", "fastapi", "vllm_hash", "vllm_programs", "sglang_manual", "naive"]
PD_TARGETS = ["native_pd", "vllm_pd"]
PROGRAMS = {
    "program_scheduling_enable_key": "auto",
    "global_queue": True,
    "token_capacity_per_target": 1_000_000_000,
    "max_active_programs_per_target": 1_000_000,
    "metrics_interval_seconds": 1.0,
}


class Rig:
    """What stands around a target: worker and load generator, bodies, and the clock of the whole run."""

    def __init__(self, options: argparse.Namespace, folder: Path, binary: Path) -> None:
        self.options = options
        self.folder = folder
        self.binary = binary
        self.ends = time.monotonic() + options.minutes * 60
        self.workers: list[int] = []
        self.pids: list[int] = []

    def time_left(self, needed_s: float) -> bool:
        return time.monotonic() + needed_s < self.ends

    def gate(self) -> bool:
        """Waits, at most 8 s, until others take less than 12 % of the machine."""
        until = min(time.monotonic() + 8, self.ends)
        while not self.options.no_gate and time.monotonic() < until:
            before, began = doors.busy_s(), time.monotonic()
            time.sleep(0.4)  # the window that is measured
            if (doors.busy_s() - before) / (time.monotonic() - began) / (os.cpu_count() or 1) < 0.12:
                return True
        return False

    def load(self, port: int, **words: object) -> dict[str, Any]:
        command = [str(self.binary), "load", "--port", str(port)]
        for name, value in words.items():
            for each in value if isinstance(value, list) else [value]:
                command += [f"--{name}", str(each)]
        told: dict[str, Any] = json.loads(subprocess.check_output(command, timeout=200))
        return told

    def tell(self, words: str) -> None:
        """How the workers are to answer from now on. By their own route: routers drop headers and fields."""
        for port in self.workers:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/mock", data=words.encode())
            urllib.request.urlopen(request, timeout=5).close()

    def cell(self, port: int, pid: int | None, unit: str, **words: object) -> dict[str, Any]:
        """One measurement; `unit` is what CPU is divided by: `done` or `chunks`."""
        quiet = self.gate()
        mine = self.spent(pid)
        target = doors.cpu_s(pid) if pid else 0.0
        busy, began = doors.busy_s(), time.monotonic()
        told = self.load(port, **words)
        took = time.monotonic() - began
        target = (doors.cpu_s(pid) if pid else 0.0) - target
        foreign = doors.busy_s() - busy - (self.spent(pid) - mine)
        if not told[unit]:
            raise ValueError(f"no {unit} in {took:.1f} s")
        told["cpu_us"] = target / told[unit] * 1e6
        told["foreign"] = max(0.0, foreign) / took / (os.cpu_count() or 1)
        told["quiet"] = quiet
        return told

    def spent(self, pid: int | None) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = children.ru_utime + children.ru_stime
        return total + sum(doors.cpu_s(each) for each in [*self.pids, *([pid] if pid else [])])


def install(cache: Path, package: str, version: str) -> Path:
    folder = cache / f"{package}-{version}"
    if not (folder / "done").exists():
        subprocess.check_call([sys.executable, "-m", "venv", str(folder)])
        subprocess.check_call([str(folder / "bin/pip"), "install", "-q", f"{package}=={version}"])
        (folder / "done").touch()
    return folder / "bin"


def build() -> Path:
    crate = ROOT / "workers/mock/fast"
    subprocess.check_call(["cargo", "build", "--release", "--locked", "--quiet"], cwd=crate)
    return crate / "target/release/fastmock"


def command(rig: Rig, name: str, port: int, cache: Path) -> list[str]:
    urls = [f"http://127.0.0.1:{worker}" for worker in rig.workers]
    serve = [
        sys.executable,
        "-m",
        "conserve.cli",
        "serve",
        "--port",
        str(port),
        "--log-level",
        "warning",
        "--door",
    ]
    if name == "nginx":
        return doors.nginx(rig.folder, port, rig.workers)
    if name in ("native", "fastapi"):
        return [*serve, name, *(part for url in urls for part in ("--decoder", url))]
    if name == "native_pd":
        return [*serve, "native", "--prefiller", urls[0], "--decoder", urls[1]]
    if name == "naive":
        uvicorn = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "bench/peers"), "naive:app"]
        return [*uvicorn, "--port", str(port), "--log-level", "error", "--no-access-log"]
    usual = [
        "--port",
        str(port),
        "--worker-startup-check-interval",
        "1",
        "--prometheus-port",
        str(doors.free_port()),
    ]
    if name == "sglang_manual":
        smg = str(install(cache, "sglang-router", PEERS["sglang-router"]) / "smg")
        host = ["--host", "127.0.0.1", "--prometheus-host", "127.0.0.1", "--log-level", "warn"]
        return [smg, "launch", *usual, *host, "--worker-urls", *urls, "--policy", "manual"]
    vllm = str(install(cache, "vllm-router", PEERS["vllm-router"]) / "vllm-router")
    peer = [vllm, *usual, "--log-level", "warning", "--policy", "consistent_hash"]
    if name == "vllm_pd":
        return [*peer, "--vllm-pd-disaggregation", "--prefill", urls[0], "--decode", urls[1]]
    if name == "vllm_programs":
        peer += ["--enable-program-scheduling", "--program-scheduling-config-json", json.dumps(PROGRAMS)]
    return [*peer, "--worker-urls", *urls]


@contextlib.contextmanager
def target(rig: Rig, name: str, cache: Path) -> Iterator[tuple[int, int | None]]:
    if name == "direct":
        yield rig.workers[0], None
        return
    port = doors.free_port()
    os.environ["WORKERS"] = ",".join(f"http://127.0.0.1:{worker}" for worker in rig.workers)
    with doors.running(*command(rig, name, port, cache)) as pid:
        doors.until_ready(port, pid)
        yield port, pid


def cells(rig: Rig, name: str, port: int, pid: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    header = "x-smg-routing-key" if name == "sglang_manual" else "x-session-id"
    seconds = 0.5 if rig.options.quick else 1.0
    for size, (connections, sessions) in CLOSED.items():
        usual = {"header": header, "sessions": sessions}
        if name in PD_TARGETS:
            turns = [str(rig.folder / f"turn-{size}-{turn:02}") for turn in range(20)]
            usual["sessions"] = 1_000_000_000
            usual["first_session"] = int(time.monotonic() * 1e6) % 900_000_000
            yield (
                f"conversation {size}",
                rig.cell(port, pid, "done", connections=8, seconds=seconds * 1.5, body=turns, **usual),
            )
            continue
        file = rig.folder / f"closed-{size}"
        rig.load(port, connections=connections, seconds=0.3, body=file, **usual)
        yield (
            f"closed {size}",
            rig.cell(port, pid, "done", connections=connections, seconds=seconds, body=file, **usual),
        )
        rate = RATES[size] if name != "naive" else RATES[size] // 2
        yield (
            f"open {size}",
            rig.cell(port, pid, "done", connections=16, seconds=seconds, rate=rate, body=file, **usual),
        )
    if name in PD_TARGETS:
        return
    usual = {"header": header, "connections": 256, "sessions": 1000}
    yield (
        "paced",
        rig.cell(
            port, pid, "chunks", seconds=1.5 if rig.options.quick else 2.5, body=rig.folder / "paced", **usual
        ),
    )
    rig.tell("flat")
    try:
        yield "flat", rig.cell(port, pid, "chunks", seconds=seconds, body=rig.folder / "paced", **usual)
    finally:
        rig.tell("")


def resident_mb(pid: int) -> float:
    total = 0
    for each in doors.tree(pid):
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total / 1024


def slow_reader(rig: Rig, port: int, pid: int) -> float:
    """Most that the target grows by, in MB, while a client takes 300 MB at about 60 MB/s."""
    data = (rig.folder / "long").read_bytes().replace(b"@@SESSION@@", b"slow-reader")
    before, most, taken = resident_mb(pid), 0.0, 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        while taken < 300_000_000:
            piece = client.recv(1 << 20)
            if not piece:
                raise RuntimeError(f"the stream ended after {taken} bytes")
            if taken // 6_000_000 != (taken + len(piece)) // 6_000_000:
                most = max(most, resident_mb(pid) - before)
                time.sleep(0.1)  # what makes the reader slow: 6 MB, then a pause
            taken += len(piece)
    return most


def memory(rig: Rig, cache: Path) -> dict[str, float]:
    file = rig.folder / "closed-1KB"
    with target(rig, "native", cache) as (port, pid):
        assert pid is not None
        rig.load(port, body=file, seconds=1, sessions=100)
        told = {"slow_reader_mb": slow_reader(rig, port, pid)}
        start = resident_mb(pid)
        counts = {"conversations_10k_mb": 10_000} | (
            {} if rig.options.quick else {"conversations_1m_mb": 1_000_000}
        )
        for name, count in counts.items():
            done = rig.load(port, body=file, requests=count, sessions=count, first_session=0, connections=32)
            told[name] = resident_mb(pid) - start
            told[f"{name}_failed"] = done["non200"] + done["errs"]
    return told


def summary(taken: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = [key for key in taken[0] if key not in ("quiet", "seconds")]
    return {key: doors.spread([sample[key] for sample in taken]) for key in numbers} | {"samples": len(taken)}


def paired(samples: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """CPU of the doors over that of nginx and of vllm-router, and latency over direct, within each round."""
    found: dict[str, Any] = {}
    against = [
        ("native", "nginx"),
        ("native", "vllm_hash"),
        ("native", "sglang_manual"),
        ("native_pd", "vllm_pd"),
    ]
    for mine, other in against:
        # An open loop asks for less CPU than the ticks that it is counted in.
        for case in (case for case in samples.get(mine, {}) if not case.startswith("open")):
            pairs = zip(samples[mine][case], samples.get(other, {}).get(case, []), strict=False)
            ratios = [one["cpu_us"] / two["cpu_us"] for one, two in pairs if two["cpu_us"]]
            if ratios:
                found[f"{case}: {mine} / {other} CPU"] = doors.spread(ratios)
    for name, rows in samples.items():
        for case in (case for case in rows if case.startswith("open") and name != "direct"):
            pairs = list(zip(rows[case], samples.get("direct", {}).get(case, []), strict=False))
            for key in ("p50", "p99"):
                added = [(one[key] - two[key]) / 1000 for one, two in pairs]
                if added:
                    found[f"{case}: {name} added {key} ms"] = doors.spread(added)
    for case, key in (("closed 1KB", "rps"), ("closed 64KB", "rps"), ("paced", "cps"), ("flat", "cps")):
        both = zip(
            samples.get("fastapi", {}).get(case, []), samples.get("naive", {}).get(case, []), strict=False
        )
        ratios = [one[key] / two[key] for one, two in both if two[key]]
        if ratios:
            found[f"{case}: fastapi / naive {key}"] = doors.spread(ratios)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument(
        "--no-gate", action="store_true", help="for development: do not wait for a quiet machine"
    )
    parser.add_argument("--minutes", type=float, default=8.5, help="no cell begins after this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", default=",".join(TARGETS + PD_TARGETS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cache = ROOT / ".cache/peers"
    cache.mkdir(parents=True, exist_ok=True)
    binary = build()
    names = options.targets.split(",")
    for package, version in PEERS.items():
        if any(name.startswith(package.split("-")[0]) for name in names):
            install(cache, package, version)
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        rig = Rig(options, Path(stack.enter_context(tempfile.TemporaryDirectory())), binary)
        bodies.write(rig.folder, SIZES)
        for _ in range(2):
            worker = subprocess.Popen(
                [str(binary), "serve", "--blocks", "16000000"], stdout=subprocess.PIPE, text=True
            )
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            assert worker.stdout is not None
            rig.workers.append(int(worker.stdout.readline()))
            rig.pids.append(worker.pid)
        room = memory(rig, cache) if "native" in names else {}
        print("memory", room, flush=True)
        for turn in range(1 if options.quick else options.rounds):
            for name in names:
                if not rig.time_left(25):
                    failed[f"round {turn + 1}: {name}"] = "no time left"
                    continue
                try:
                    with target(rig, name, cache) as (port, pid):
                        for case, sample in cells(rig, name, port, pid):
                            samples.setdefault(name, {}).setdefault(case, []).append(sample)
                            print(f"round {turn + 1}: {name}: {case}: {sample}", flush=True)
                except (OSError, subprocess.SubprocessError, ValueError) as error:
                    failed[f"round {turn + 1}: {name}"] = repr(error)
    result = {
        "question": (__doc__ or "").splitlines()[0],
        "command": "python bench/peers/run.py " + " ".join(sys.argv[1:]),
        "commit": subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True
        ).strip(),
        "machine": {
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "peers": PEERS,
        "memory_mb": room,
        "failed": failed,
        "targets": {
            name: {case: summary(taken) for case, taken in rows.items()} for name, rows in samples.items()
        },
        "paired": paired(samples),
    }
    for name, row in result["paired"].items():
        print(f"{name:52} {row['median']:9.3f}  ({row['least']:.3f}-{row['most']:.3f})")
    foreign = [sample["foreign"] for rows in samples.values() for taken in rows.values() for sample in taken]
    print(
        f"CPU taken by strangers, median of cells: {statistics.median(foreign or [0]):.3f}; failed: {failed}"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
