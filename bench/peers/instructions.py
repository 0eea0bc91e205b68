"""Where does the native door spend its CPU: how many instructions a turn or a chunk takes, in what, and how long the kernel?

`bench/rust/door.rs` is the door without Python. Its instructions are counted under callgrind, which a busy machine does not
change, and put down to who runs them by the crate or library in their function's name. Then the same program runs by itself, and
what it took is parted as the system accounts for it: time of its own, and time in the kernel on its behalf.

usage: python bench/peers/instructions.py [--cases 1KB,64KB,512KB,paced] [--lines 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import bodies
import doors
import run

# Code inside of it is somebody's who has the instructions of the processor: whose, only its caller's name says.
VECTORIZED = "*vectorize*"
COUNTED = {"1KB": 300, "64KB": 200, "512KB": 60, "paced": 40}
SECONDS = 2
# The first that a function's name matches.
GROUPS = {
    "UTF-8 check": r"simdutf8|dispatch::utf8|core::str::converts",
    "JSON scan": r"conserve::dispatch::(json|peek|arrival|answer)|pulp::",
    "routing core": r"conserve::(?!proxy)",
    "copies": r"mem(cpy|move|set|cmp)|bcmp",
    "allocator": r"malloc|calloc|realloc|\b_?_?free\b|_int_free|unlink_chunk|__rust_(de|re)?alloc|__rdl_|sysmalloc|systrim",
    "door": r"conserve::proxy|^door::",
    "HTTP": r"\b(hyper|hyper_util|http|http_body|httparse|httpdate|want|try_lock)\b::",
    "tokio": r"\b(tokio|mio|parking_lot\w*|atomic_waker|futures_\w+)\b::",
    "buffers": r"\bbytes\b::",
}


def program() -> str:
    """Builds the door and says where it lies."""
    command = ["cargo", "bench", "--locked", "--quiet", "--features", "proxy", "--bench", "door", "--no-run"]
    told = subprocess.check_output([*command, "--message-format=json"], cwd=run.ROOT, text=True)
    built = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    return next(str(each["executable"]) for each in reversed(built) if each.get("executable"))


@contextlib.contextmanager
def started(*command: str, **more: str) -> Iterator[tuple[int, int]]:
    """A child that prints its port first, with more in its environment: its pid and the port."""
    environment = os.environ | more
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        assert child.stdout is not None
        yield child.pid, int(child.stdout.readline())
    finally:
        child.terminate()
        child.wait()


class Rig:
    """Two workers, the bodies, and the load."""

    def __init__(self, mock: Path, folder: Path, workers: list[int]) -> None:
        self.mock = mock
        self.folder = folder
        self.workers = [str(port) for port in workers]

    def load(self, port: int, case: str, connections: int, sessions: int, *much: str) -> int:
        """How many turns, or chunks, were served."""
        body = self.folder / (case if case == "paced" else f"closed-{case}")
        words = ["load", "--port", str(port), "--connections", str(connections), "--sessions", str(sessions)]
        words += ["--header", "x-session-id", "--body", str(body), *much]
        told = json.loads(subprocess.check_output([str(self.mock), *words]))
        if told["errs"] or told["non200"]:
            raise RuntimeError(f"{case}: {told['errs']} errors, {told['non200']} answers that are not 200")
        return int(told["chunks" if case == "paced" else "done"])


def counted(rig: Rig, door: str, case: str) -> tuple[float, Counter[str]]:
    """Instructions for each turn or chunk: all, and by function."""
    told = rig.folder / f"callgrind-{case}"
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={told}"]
    valgrind += [f"--separate-callers1={VECTORIZED}"]
    # The C library copies a lot with one instruction, of which callgrind would count each byte.
    counts = {"GLIBC_TUNABLES": f"glibc.cpu.x86_rep_movsb_threshold={1 << 30}"}
    with started(*valgrind, door, *rig.workers, **counts) as (pid, port):
        doors.until_ready(port, pid)
        rig.load(port, case, 4, 20, "--requests", "40")
        control = ["callgrind_control", str(pid), "-i"]
        subprocess.check_call([*control, "on"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        units = rig.load(port, case, 4, 20, "--requests", str(COUNTED[case]))
        subprocess.check_call([*control, "off"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    listed = subprocess.check_output(
        ["callgrind_annotate", "--threshold=100", "--auto=no", str(told)], text=True
    )
    functions: Counter[str] = Counter()
    total = 0.0
    for line in listed.splitlines():
        found = re.match(r"\s*([\d,]+) \([^)]*\)\s+(.*)", line)
        if found is None:
            continue
        count = int(found[1].replace(",", "")) / units
        if found[2].startswith("PROGRAM TOTALS"):
            total = count
        else:
            # FILE:FUNCTION [OBJECT]; the file is that of the line, which may be inlined from elsewhere.
            functions[re.sub(r" \[.*\]$", "", found[2]).partition(":")[2]] += count
    return total, functions


def grouped(functions: Counter[str], total: float) -> dict[str, float]:
    """What share each group has of the instructions."""
    shares: Counter[str] = Counter(dict.fromkeys(GROUPS, 0.0))
    for name, count in functions.items():
        group = next((group for group, pattern in GROUPS.items() if re.search(pattern, name)), "else")
        shares[group] += count / total
    # Also what callgrind lists no function for.
    shares["else"] += 1 - sum(shares.values())
    return dict(shares)


def timed(rig: Rig, door: str, case: str) -> dict[str, float]:
    """CPU time for each turn or chunk, in microseconds."""
    connections, sessions = run.CLOSED.get(case, (256, 1000))
    with started(door, *rig.workers) as (pid, port):
        doors.until_ready(port, pid)
        rig.load(port, case, connections, sessions, "--seconds", "0.5")
        before = spent_s(pid)
        units = rig.load(port, case, connections, sessions, "--seconds", str(SECONDS))
        own, kernel = (later - sooner for later, sooner in zip(spent_s(pid), before, strict=True))
    return {
        "own_us": own / units * 1e6,
        "kernel_us": kernel / units * 1e6,
        "load_average": os.getloadavg()[0],
    }


def spent_s(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * doors.TICK_S, int(fields[12]) * doors.TICK_S


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=",".join(COUNTED))
    parser.add_argument("--lines", type=int, default=0, help="print so many functions of each case")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    door, mock = program(), run.build()
    told: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "command": f"python bench/peers/instructions.py --json {options.json}",
        "commit": subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=run.ROOT, text=True
        ).strip(),
        "machine": {"cores": os.cpu_count(), "cpu": cpu_name()},
        "profile": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith("CARGO_PROFILE_")
        },
        "cases": {},
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bodies.write(folder, run.SIZES)
        worker = [str(mock), "serve", "--blocks", "16000000"]
        rig = Rig(mock, folder, [stack.enter_context(started(*worker))[1] for _ in range(2)])
        for case in options.cases.split(","):
            total, functions = counted(rig, door, case)
            row = {"instructions": total, "shares": grouped(functions, total), **timed(rig, door, case)}
            told["cases"][case] = row
            print(
                f"{case:6} {total:12,.0f} instructions, {row['own_us']:.1f} us of its own, {row['kernel_us']:.1f} us in the kernel"
            )
            for group, share in sorted(row["shares"].items(), key=lambda each: -each[1]):
                print(f"       {share:6.1%} {group}")
            for name, count in functions.most_common(options.lines):
                print(f"       {count:10,.0f} {name[:140]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def cpu_name() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else "unknown"


if __name__ == "__main__":
    main()
