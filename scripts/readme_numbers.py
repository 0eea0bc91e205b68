"""The README's table of numbers, read from bench/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "bench" / "results"


def result(name: str) -> dict[str, Any]:
    """One result file."""
    read: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return read


def numbers() -> str:
    """The table: what was measured, here and beside it, and the file it comes from."""
    turns, scale = result("turns.json"), result("scale.json")
    python, dispatch = result("python-turn.json"), result("python-dispatch.json")

    def turn_ns(what: str) -> str:
        return f"{turns[what]['begin_finish_ns_one_thread']['median']:.0f} ns"

    during, one = scale["begin_ns_during_the_sweep"], python["one_thread"]
    body = dispatch["by_body_size"][2]
    rows = [
        (
            "turn n, begin and finish, one thread (median)",
            turn_ns("router"),
            f"`Mutex<HashMap>` {turn_ns('mutex_hashmap')}, sharded map {turn_ns('sharded_map')}; neither has a line, events or a sweep",
            "turns.json",
        ),
        (
            "the same from Python",
            f"{one['router_with']['median_ns']:.0f} ns",
            f"a dict and a lock in Python {one['naive_dict_and_lock']['median_ns']:.0f} ns",
            "python-turn.json",
        ),
        (
            f"{scale['conversations']:,} live conversations, resident memory",
            f"{scale['memory']['resident_mb']:.0f} MB",
            "–",
            "scale.json",
        ),
        (
            "`begin` while a million idle conversations are swept (p50, p99)",
            f"{during['p50']} ns, {during['p99']} ns",
            f"before the sweep {scale['begin_ns_before_the_sweep']['p50']} ns, {scale['begin_ns_before_the_sweep']['p99']} ns",
            "scale.json",
        ),
        (
            f"a {body['body_bytes'] // 1024} KB request, from its bytes to the decoder's (median)",
            f"{body['dispatcher']['median_us']:.0f} µs",
            f"`json.loads` and `json.dumps` {body['json_loads_and_dumps']['median_us']:.0f} µs",
            "python-dispatch.json",
        ),
    ]
    lines = [
        "| what | ConServe | beside it, same run | result with its command |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {what} | {ours} | {others} | [{name}](bench/results/{name}) |"
        for what, ours, others, name in rows
    ]
    return "\n".join(lines)
