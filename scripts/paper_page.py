"""docs/paper.md as it follows from bench/results/paper.json."""

from __future__ import annotations

import json
from pathlib import Path

from conserve.sim.paper.blocks import as_markdown
from conserve.sim.paper.report import report

__all__ = ["FIGURES", "PAGE", "RESULTS", "paper_page"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "paper.json"
FIGURES = ROOT / "docs" / "assets" / "paper"
PAGE = ROOT / "docs" / "paper.md"


def paper_page() -> str:
    """The page."""
    return as_markdown(report(json.loads(RESULTS.read_text(encoding="utf-8"))), figures="assets/paper/")
