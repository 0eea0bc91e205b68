"""Takes a run of `make paper` into the project: its numbers, its figures, and docs/paper.md.

A run of some parts, or of some traces in full mode, takes the place of those; the rest stays as it was published. The results say
which commit ran each.

usage: python scripts/publish_paper.py [FOLDER of the run, out/paper] [COMMIT that ran, HEAD]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from paper_page import FIGURES, PAGE, RESULTS, paper_page

from conserve.sim.paper.plots import draw
from conserve.sim.workload import WORKLOADS

ROOT = Path(__file__).parents[1]
_ALIKE = ("seeds", "small", "recorded", "baseline")
"""What parts of one publication must agree in."""

Json = dict[str, Any]


def merged(published: Json, new: Json) -> Json:
    """What was published, with what ran now in its place."""
    differs = [name for name in _ALIKE if name in published and published[name] != new[name]]
    if differs:
        return new
    told = {**published, **new}
    if "full" in published and "full" in new:
        told["full"] = _full(published["full"], new["full"])
    told["ran"] = {**published.get("ran", {}), **new["ran"]}
    names = told.get("full", {}).get("conversations", {})
    traces = [] if len(names) == len(WORKLOADS) else [f"--trace {name}" for name in names]
    told["command"] = " ".join(["conserve sim paper", *traces])
    return told


def _full(published: Json, new: Json) -> Json:
    if published["policies"] != new["policies"]:
        return new
    kept = [row for row in published["rows"] if row["workload"] not in new["conversations"]]
    place = list(WORKLOADS)
    rows = sorted([*kept, *new["rows"]], key=lambda row: place.index(row["workload"]))
    by_workload = {
        name: dict(sorted(both.items(), key=lambda item: place.index(item[0])))
        for name in ("conversations", "capacity_per_s", "first_share")
        if (both := {**published.get(name, {}), **new[name]})
    }
    return {**new, **by_workload, "rows": rows}


def ran(results: Json, commit: str) -> dict[str, str]:
    """Which commit ran each part, and each trace of full mode."""
    parts = [name for name in ("claims", "waterfall", "errors") if name in results]
    return dict.fromkeys([*parts, *results.get("full", {}).get("conversations", {})], commit)


def main(folder: Path, commit: str) -> None:
    """Merges and renders."""
    results = json.loads((folder / "paper.json").read_text(encoding="utf-8"))
    short = subprocess.run(
        ["git", "rev-parse", "--short", commit], cwd=ROOT, check=True, capture_output=True, text=True
    )
    published = json.loads(RESULTS.read_text(encoding="utf-8"))
    # The first publications named one commit for all.
    published.setdefault("ran", ran(published, published.pop("commit", "")))
    results["ran"] = ran(results, short.stdout.strip())
    results["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    told = merged(published, results)
    RESULTS.write_text(json.dumps(told, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    draw(told, FIGURES)
    PAGE.write_text(paper_page(), encoding="utf-8")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    main(Path(given.get(1, ROOT / "out" / "paper")), given.get(2, "HEAD"))
