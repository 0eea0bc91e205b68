"""What does turn n cost from Python, begin and finish together, and what would a plain dict and a lock cost?

    python bench/python/turn.py [--turns 200000] [--runs 7] [--out bench/results/python-turn.json]

In the same run: `Router` by `with`, the same reading the route, `async with` (no waiting), and `NaiveRouter` below: the
same decision in pure Python, a dict guarded by a lock. One thread, then several on one router (the GIL allows one at a time).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from conserve import Decoder, Prefiller, Router, __version__

# A multiple of BATCH for each of eight threads.
CONVERSATIONS = 1_600
BATCH = 100
PROMPT, OUTPUT = 3_912, 87


class NaiveRouter:
    """What one would write first: pins in a dict, booked blocks in a list, one lock. No line, no sweep, no metrics."""

    def __init__(self, decoders: int, kv_blocks: int) -> None:
        self._lock = threading.Lock()
        self._pins: dict[str, list[int]] = {}
        self._booked = [0] * decoders
        self._capacity = kv_blocks

    def turn(self, conversation: str, *, prompt_tokens: int) -> NaiveTurn:
        need = -(-prompt_tokens // 16)
        with self._lock:
            entry = self._pins.get(conversation)
            if entry is None:
                decoder = min(range(len(self._booked)), key=self._booked.__getitem__)
                entry = self._pins[conversation] = [decoder, 0, 0, 0]
            growth = max(0, need - entry[1])
            if self._booked[entry[0]] + growth > self._capacity:
                raise RuntimeError("overloaded")
            self._booked[entry[0]] += growth
            entry[1] += growth
            entry[2] += 1
            entry[3] += 1
        return NaiveTurn(self, entry, prompt_tokens)

    def settle(self, entry: list[int], tokens: int) -> None:
        actual = -(-tokens // 16)
        with self._lock:
            self._booked[entry[0]] += actual - entry[1]
            entry[1] = actual
            entry[3] -= 1


class NaiveTurn:
    __slots__ = ("_entry", "_prompt_tokens", "_router", "_settled")

    def __init__(self, router: NaiveRouter, entry: list[int], prompt_tokens: int) -> None:
        self._router, self._entry, self._prompt_tokens, self._settled = router, entry, prompt_tokens, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._settled:
            self.finish(output_tokens=0)

    def finish(self, *, output_tokens: int) -> None:
        self._settled = True
        self._router.settle(self._entry, self._prompt_tokens + output_tokens)


def fleet() -> Router:
    decoders = [Decoder(f"http://d{n}:8000", kv_blocks=1_000_000) for n in range(8)]
    return Router([Prefiller("http://p0:8000")], decoders)


def batches(router: Router | NaiveRouter, names: list[str], turns: int) -> list[float]:
    """Nanoseconds for a turn, each the mean of a batch."""
    clock = time.perf_counter_ns
    samples = []
    for start in range(0, turns, BATCH):
        first = start % len(names)
        some = names[first : first + BATCH]
        began = clock()
        for name in some:
            with router.turn(name, prompt_tokens=PROMPT) as turn:
                turn.finish(output_tokens=OUTPUT)
        samples.append((clock() - began) / len(some))
    return samples


def routed_batches(router: Router, names: list[str], turns: int) -> list[float]:
    """The same, and the URL of the decoder is read, as a caller that sends the turn there must."""
    clock = time.perf_counter_ns
    samples = []
    for start in range(0, turns, BATCH):
        first = start % len(names)
        some = names[first : first + BATCH]
        began = clock()
        for name in some:
            with router.turn(name, prompt_tokens=PROMPT) as turn:
                _ = turn.route.decoder
                turn.finish(output_tokens=OUTPUT)
        samples.append((clock() - began) / len(some))
    return samples


def async_batches(router: Router, names: list[str], turns: int) -> list[float]:
    async def run() -> list[float]:
        clock = time.perf_counter_ns
        samples = []
        for start in range(0, turns, BATCH):
            first = start % len(names)
            some = names[first : first + BATCH]
            began = clock()
            for name in some:
                async with router.turn(name, prompt_tokens=PROMPT) as turn:
                    turn.finish(output_tokens=OUTPUT)
            samples.append((clock() - began) / len(some))
        return samples

    return asyncio.run(run())


def threaded(router: Router | NaiveRouter, names: list[str], turns: int, threads: int) -> float:
    """Turns in a second over all threads, each with its own conversations."""
    share = len(names) // threads
    start = threading.Barrier(threads + 1)

    def work(thread: int) -> None:
        mine = names[thread * share : (thread + 1) * share]
        start.wait()
        batches(router, mine, turns // threads)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return turns / (time.perf_counter() - began)


def summary(runs: list[list[float]]) -> dict[str, float]:
    medians = [statistics.median(run) for run in runs]
    everything = sorted(sample for run in runs for sample in run)

    def at(share: float) -> float:
        return round(everything[min(len(everything) - 1, int(share * len(everything)))], 1)

    return {
        "median_ns": round(statistics.median(medians), 1),
        "spread_of_run_medians_ns": round(max(medians) - min(medians), 1),
        "p50_ns": at(0.50),
        "p95_ns": at(0.95),
        "p99_ns": at(0.99),
        "max_ns": round(everything[-1], 1),
        "batches": len(everything),
    }


def machine() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    info = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return {
        "command": "python " + " ".join(sys.argv),
        "commit": commit.stdout.strip(),
        "version": __version__,
        "python": sys.version.split()[0],
        "free_threaded": not getattr(sys, "_is_gil_enabled", lambda: True)(),
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--turns", type=int, default=200_000)
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--out", type=Path, default=Path("bench/results/python-turn.json"))
    chosen = options.parse_args()
    names = [f"task-{n}" for n in range(CONVERSATIONS)]
    ours, naive = fleet(), NaiveRouter(8, 1_000_000)
    ways: dict[str, Callable[[], list[float]]] = {
        "router_with": lambda: batches(ours, names, chosen.turns),
        "router_with_route_read": lambda: routed_batches(ours, names, chosen.turns),
        "router_async_with": lambda: async_batches(ours, names, chosen.turns),
        "naive_dict_and_lock": lambda: batches(naive, names, chosen.turns),
    }
    for way in ways.values():  # Warm up: every conversation is pinned from here on.
        way()
    samples: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(chosen.runs):  # The ways take turns, so that a noisy moment hits all of them.
        for name, way in ways.items():
            samples[name].append(way())
    result = {
        "question": "what does turn n cost from Python, begin and finish together?",
        **machine(),
        "turns": chosen.turns,
        "runs": chosen.runs,
        "batch": BATCH,
        "one_thread": {name: summary(runs) for name, runs in samples.items()},
        "turns_per_s_by_threads": {
            name: {str(n): round(threaded(router, names, chosen.turns, n)) for n in (1, 2, 4, 8)}
            for name, router in (("router_with", ours), ("naive_dict_and_lock", naive))
        },
        "target_ns": 2_500,
    }
    ours.check()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in result["one_thread"].items():
        print(f"{name:22} median {row['median_ns']:8.0f} ns   p99 {row['p99_ns']:8.0f} ns")
    print(f"-> {chosen.out}")


if __name__ == "__main__":
    main()
