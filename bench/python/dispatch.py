"""What does the dispatcher add to a later turn, from the client's body to the request for the decoder, by body size?

    python bench/python/dispatch.py [--runs 7] [--out bench/results/python-dispatch.json]

Beside it, in the same run, what a proxy does that parses the body, adds one field and writes it again: `json.loads` and
`json.dumps`. Bodies are chat histories as agents resend them: code and tool output, escaped as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conserve import Decoder, Prefiller, Router, __version__
from conserve._core import Call, Dispatcher, Stream

PATH = "/v1/chat/completions"
SIZES = (8 << 10, 64 << 10, 256 << 10, 1 << 20)
LINE = '    def turn(self, name: str) -> "Turn":  # \u00d7 the next turn\n\t\treturn self._turns[name]\\n\n'


def history(size_bytes: int) -> bytes:
    """A streamed chat request of about `size_bytes`, in messages of 4 KB."""
    messages, written = [{"role": "system", "content": "You are an agent."}], 0
    while written < size_bytes:
        role = "assistant" if len(messages) % 2 == 0 else "user"
        messages.append({"role": role, "content": LINE * (4096 // len(LINE))})
        written = len(json.dumps(messages[-1])) * (len(messages) - 1)
    messages.append({"role": "user", "content": "Go on."})
    return json.dumps({"model": "m", "messages": messages, "stream": True, "temperature": 0.0}).encode()


def dispatched(
    dispatcher: Dispatcher, headers: list[tuple[bytes, bytes]], body: bytes
) -> Callable[[], bytes]:
    def run() -> bytes:
        dispatch = dispatcher.open(PATH, headers, body)
        action = dispatch.start()
        if not isinstance(action, Stream):
            raise TypeError(f"a later turn goes straight to its decoder, not {action!r}")
        sent = action.upstream.body
        dispatch.client_gone()
        return sent

    return run


def parsed(body: bytes) -> Callable[[], bytes]:
    def run() -> bytes:
        request = json.loads(body)
        request["stream_options"] = {"include_usage": True}
        return json.dumps(request).encode()

    return run


def pin(dispatcher: Dispatcher, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """The first turn, whose prefill and answer come from here."""
    dispatch = dispatcher.open(PATH, headers, body)
    action = dispatch.start()
    if isinstance(action, Call):
        params = b'{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[1],"remote_host":"h","remote_port":1}'
        answer = b'{"choices":[],"usage":{"prompt_tokens":%d},"kv_transfer_params":%s}' % (
            len(body) // 4,
            params,
        )
        dispatch.answered(200, [(b"content-type", b"application/json")], answer)
    dispatch.head(200, [(b"content-type", b"text/event-stream")])
    dispatch.heard(b"data: [DONE]\n\n")
    dispatch.end()


def measure(run: Callable[[], bytes], repeat: int) -> list[float]:
    """Microseconds of each call."""
    clock, samples = time.perf_counter_ns, []
    for _ in range(repeat):
        began = clock()
        run()
        samples.append((clock() - began) / 1000)
    return samples


def summary(runs: list[list[float]]) -> dict[str, float]:
    medians = [statistics.median(run) for run in runs]
    everything = sorted(sample for run in runs for sample in run)
    at = {share: everything[min(len(everything) - 1, int(share * len(everything)))] for share in (0.95, 0.99)}
    return {
        "median_us": round(statistics.median(medians), 1),
        "spread_of_run_medians_us": round(max(medians) - min(medians), 1),
        "p95_us": round(at[0.95], 1),
        "p99_us": round(at[0.99], 1),
        "max_us": round(everything[-1], 1),
        "calls": len(everything),
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--out", type=Path, default=Path("bench/results/python-dispatch.json"))
    chosen = options.parse_args()
    router = Router([Prefiller("http://p0:8000")], [Decoder("http://d0:8000", kv_blocks=1_000_000)])
    rows = []
    for size in SIZES:
        dispatcher = Dispatcher(router)
        body = history(size)
        headers = [(b"x-conversation-id", b"task-%d" % size), (b"content-type", b"application/json")]
        pin(dispatcher, headers, body)
        ways = {
            "dispatcher": dispatched(dispatcher, headers, body),
            "json_loads_and_dumps": parsed(body),
        }
        repeat = max(30, (20 << 20) // len(body))
        for way in ways.values():
            measure(way, repeat)  # Warm up.
        runs: dict[str, list[list[float]]] = {name: [] for name in ways}
        for _ in range(chosen.runs):
            for name, way in ways.items():
                runs[name].append(measure(way, repeat))
        results = {name: summary(samples) for name, samples in runs.items()}
        rows.append({"body_bytes": len(body), **results})
        shown = "   ".join(f"{name} {results[name]['median_us']:8.1f} us" for name in ways)
        print(f"{len(body):>9} bytes   {shown}")
    router.check()
    info = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    result = {
        "question": "what does the dispatcher add to a later turn, by body size?",
        "command": "python " + " ".join(sys.argv),
        "commit": commit.stdout.strip(),
        "version": __version__,
        "python": sys.version.split()[0],
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 1),
        "runs": chosen.runs,
        "by_body_size": rows,
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"-> {chosen.out}")


if __name__ == "__main__":
    main()
