"""`python -m tests.stress`: both doors under load while their workers die; exit status 1 if anything is left or lost."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from .run import Size, run


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="tests.stress", description=__doc__)
    parser.add_argument(
        "--conversations", type=int, default=2000, help="at the native door; FastAPI gets a tenth"
    )
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument(
        "--limit-s", type=float, default=100, help="each of the native door's two waves; FastAPI's a quarter"
    )
    parser.add_argument("--door", choices=("native", "fastapi", "both"), default="both")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = {
        "native": Size(
            door="native", conversations=given.conversations, turns=given.turns, limit_s=given.limit_s
        ),
        "fastapi": Size(
            door="fastapi",
            conversations=max(1, given.conversations // 10),
            turns=given.turns,
            at_once=64,
            limit_s=given.limit_s / 4,
        ),
    }
    doors = [name for name in sizes if given.door in (name, "both")]
    runs = []
    for name in doors:
        runs.append(asyncio.run(run(sizes[name], seed=given.seed)))
        _print(runs[-1])
    if given.json is not None:
        given.json.write_text(json.dumps(runs, indent=1) + "\n")
    return 1 if any(each["failures"] for each in runs) else 0


def _print(seen: dict[str, Any]) -> None:
    rss, latency, sockets = seen["rss_mib"], seen["latency_s"], seen["sockets"]
    rows = {
        "requests": f"{seen['requests']} of {seen['planned']} in {seen['took_s']} s, {seen['sent_mib']} MiB",
        "mishaps": ", ".join(f"{count} {what}" for what, count in seen["mishaps"].items()) or "none",
        **{f"  {what}": str(count) for what, count in seen["ended"].items()},
        "latency": ", ".join(f"{share} {value} s" for share, value in latency.items()),
        "memory": f"{rss['start']} MiB, at most {rss['peak']}, {rss['again']:+} in a second wave, in the end {rss['end']}",
        "sockets": f"{sockets['start']}, in the end {sockets['end']}",
        "verdict": "; ".join(seen["failures"]) or "nothing lost, nothing left",
    }
    sys.stdout.write(f"stress, {seen['door']} door, seed {seen['seed']}\n")
    for name, text in rows.items():
        sys.stdout.write(f"  {name:<32}{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
