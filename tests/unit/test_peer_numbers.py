"""The page of the side by side run says what the result says, also when a target or a round is missing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import peer_numbers  # noqa: E402

RESULT: dict[str, Any] = json.loads((ROOT / "bench/results/peers.json").read_text(encoding="utf-8"))


def use(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    monkeypatch.setattr(peer_numbers, "result", lambda name: told)


@pytest.mark.parametrize(
    ("median", "least", "missed"),
    [(2.0, False, False), (2.01, False, True), (2.0, True, False), (1.99, True, True)],
)
def test_an_aim_is_missed_only_beyond_it(median: float, least: bool, missed: bool) -> None:
    spread = {"median": median, "least": 1.0, "most": 3.0}
    assert ("missed" in peer_numbers.judged(spread, 2, 2, least=least)) is missed


def test_a_ratio_that_gets_worse_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = json.loads(json.dumps(RESULT))
    worse["paired"]["closed 1KB: native / nginx CPU"] = {"median": 7.5, "least": 7.0, "most": 8.0}
    worse["memory_mb"]["slow_reader_mb"] = 300.0
    use(monkeypatch, worse)
    said = peer_numbers.against_aims()
    assert "7.50 (7.00–8.00; aim ≤ 2, **missed**)" in said
    assert "+300.0 MB (aim 8, **missed**)" in said


def test_what_was_not_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    less = json.loads(json.dumps(RESULT))
    del less["targets"]["nginx"]
    less["paired"] = {case: row for case, row in less["paired"].items() if "nginx" not in case}
    less["failed"] = {"round 1: nginx": "FileNotFoundError('nginx')"}
    use(monkeypatch, less)
    said = peer_numbers.against_aims()
    assert said.count("not measured") == 3
    assert "Failed: round 1: nginx (FileNotFoundError('nginx'))" in said
    assert "nginx" not in peer_numbers.chart()


def test_bars_are_as_long_as_their_numbers() -> None:
    drawn = ET.fromstring(peer_numbers.chart())
    svg = "{http://www.w3.org/2000/svg}"
    widths = [
        float(bar.get("width", "0")) for bar in drawn.iter(f"{svg}rect") if bar.get("fill") != "#ffffff"
    ]
    told = [
        RESULT["targets"][name][case]["cpu_us"]
        for _, case, names in peer_numbers.PANELS
        for name in names
        if case in RESULT["targets"].get(name, {})
    ]
    assert len(widths) == len(told)
    for case in ("closed 1KB", "closed 64KB"):
        ours, nginx = (RESULT["targets"][name][case]["cpu_us"] for name in ("native", "nginx"))
        drawn_ratio = widths[told.index(ours)] / widths[told.index(nginx)]
        assert drawn_ratio == pytest.approx(ours["median"] / nginx["median"], rel=0.01)


def test_the_figure_is_where_the_readme_looks() -> None:
    found = re.search(r"!\[[^]]+\]\((\S+\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    assert (ROOT / found[1]).exists()
