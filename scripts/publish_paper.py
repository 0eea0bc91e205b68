"""Takes a run of `make paper` into the project: its numbers, its figures, and docs/paper.md.

usage: python scripts/publish_paper.py [FOLDER of the run, out/paper] [COMMIT that ran, HEAD]
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from paper_page import FIGURES, PAGE, RESULTS, paper_page

ROOT = Path(__file__).parents[1]


def main(folder: Path, ran: str) -> None:
    """Copies and renders."""
    results = json.loads((folder / "paper.json").read_text(encoding="utf-8"))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", ran], cwd=ROOT, check=True, capture_output=True, text=True
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    told = {"commit": commit.stdout.strip(), "machine": machine, **results}
    RESULTS.write_text(json.dumps(told, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    FIGURES.mkdir(parents=True, exist_ok=True)
    for picture in folder.glob("*.svg"):
        shutil.copyfile(picture, FIGURES / picture.name)
    PAGE.write_text(paper_page(), encoding="utf-8")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    main(Path(given.get(1, ROOT / "out" / "paper")), given.get(2, "HEAD"))
