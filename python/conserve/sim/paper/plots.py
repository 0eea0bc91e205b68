"""The report's pictures, as small SVG files that are the same for the same results."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from .claims import CLAIMS, ERROR_RATES, RATES
from .results import Json, interval_of
from .trials import BASE

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from conserve.sim.stats import Interval

__all__ = ["draw"]

_COLOURS: Final = {
    "strict": "#0b6e4f",
    "ampd-paper": "#c8553d",
    "collocated": "#3066be",
    "disaggregated": "#888888",
}
_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "conserve",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def draw(results: Json, folder: Path) -> list[Path]:
    """Draws what the results hold into `folder`."""
    made: list[Path] = []
    with mpl.rc_context(_STYLE):
        if "claims" in results:
            claims = {row["id"]: row for row in results["claims"]}
            made += [
                _save(_rates(claims), folder / "rates.svg"),
                _save(_errors(claims), folder / "errors.svg"),
            ]
        if "waterfall" in results:
            made.append(_save(_waterfall(results["waterfall"]), folder / "waterfall.svg"))
        if "full" in results:
            made.append(_save(_full(results["full"]), folder / "full.svg"))
    return made


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)
    text = path.read_text(encoding="utf-8")
    # Trailing blanks, and more digits than a pixel has.
    text = re.sub(r"(\d+\.\d{2})\d+", r"\1", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE))
    path.write_text(text, encoding="utf-8")
    return path


def _curve(axes: Axes, x: tuple[float, ...], claims: list[Json], colour: str, name: str) -> None:
    ours = [interval_of(row["ours"]) for row in claims]
    means, ends = [one.mean for one in ours], _ends(ours)
    axes.errorbar(
        x, means, yerr=ends, color=colour, marker="o", markersize=3, capsize=2, label=f"{name}, ours"
    )
    theirs = [row["paper"] for row in claims]
    axes.plot(x, theirs, color=colour, linestyle=":", marker="x", markersize=4, label=f"{name}, paper")


def _rates(claims: dict[str, Json]) -> Figure:
    figure, axes = plt.subplots(figsize=(6.4, 3.4))
    for system in ("strict", "ampd-paper", "collocated"):
        rows = [claims[f"ttfet-p95/{system}/{rate}"] for rate in RATES]
        _curve(axes, RATES, rows, _COLOURS[system], system)
    axes.set_xlabel("conversations served per second, in the paper")
    axes.set_ylabel("p95 TTFET, times alone")
    axes.legend(fontsize=8)
    return figure


def _errors(claims: dict[str, Json]) -> Figure:
    figure, panels = plt.subplots(1, 3, figsize=(9.6, 3))
    percent = tuple(100 * error for error in ERROR_RATES)
    for axes, (measure, says) in zip(
        panels,
        (("ttfet-p95", "p95 TTFET, times alone"), ("missed", "misses, %"), ("tokens-per-j", "tokens/J")),
        strict=True,
    ):
        rows = [claims[f"wrong/{measure}/{error:.2f}"] for error in ERROR_RATES]
        _curve(axes, percent, rows, _COLOURS["ampd-paper"], "ampd-paper")
        axes.set_xlabel("mispredicted turns, %")
        axes.set_title(says, fontsize=9)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def _waterfall(orders: list[Json]) -> Figure:
    figure, rows = plt.subplots(3, len(orders), figsize=(9.6, 7.2), sharex="col", sharey="row")
    against, by = _COLOURS["ampd-paper"], _COLOURS["collocated"]
    drawn: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
        (
            "ConServe's p95 TTFET, %",
            (("ttfet", against, "against AMPD"), ("ttfet_collocated", by, "against collocated")),
        ),
        (
            "TTFET misses, %",
            (
                ("ours_missed", _COLOURS["strict"], "ConServe"),
                ("base_missed", against, "AMPD"),
                ("collocated_missed", by, "collocated"),
            ),
        ),
        ("ConServe's tokens/J, %", (("energy", against, "against AMPD"),)),
    )
    for (says, curves), panels in zip(drawn, rows, strict=True):
        panels[0].set_ylabel(says)
        for axes, told in zip(panels, orders, strict=True):
            for name, colour, label in curves:
                _steps(axes, [interval_of(step[name]) for step in told["steps"]], colour, label)
            axes.axhline(0, color="#222222", linewidth=0.8)
        panels[0].legend(fontsize=8)
    for axes, told in zip(rows[-1], orders, strict=True):
        names = ["paper", *told["order"]]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlabel("switch undone")
    for axes in rows[0]:
        axes.axhline(CLAIMS["headline/ttfet"].paper, color="#222222", linestyle=":", linewidth=0.8)
    figure.tight_layout()
    return figure


def _steps(axes: Axes, found: list[Interval], colour: str, label: str) -> None:
    axes.errorbar(
        range(len(found)),
        [one.mean for one in found],
        yerr=_ends(found),
        color=colour,
        marker="o",
        markersize=4,
        capsize=2,
        label=label,
    )


def _ends(found: list[Interval]) -> list[list[float]]:
    """How far the intervals reach down and up; not at all where there is one seed."""
    return [
        [one.mean - one.low if math.isfinite(one.low) else 0.0 for one in found],
        [one.high - one.mean if math.isfinite(one.high) else 0.0 for one in found],
    ]


def _full(told: Json) -> Figure:
    rows = [row for row in told["rows"] if row["policy"] != BASE]
    loads = sorted({row["load"] for row in rows})
    workloads = list(told["capacity_per_s"])
    policies = [name for name in told["policies"] if name != BASE]
    figure, panels = plt.subplots(
        1, len(loads), figsize=(9.6, 0.5 + 0.45 * len(workloads)), sharey=True, squeeze=False
    )
    palette = plt.get_cmap("tab10")
    for axes, load in zip(panels[0], loads, strict=True):
        for number, policy in enumerate(policies):
            here = {row["workload"]: row for row in rows if row["policy"] == policy and row["load"] == load}
            at: list[float] = []
            means: list[float] = []
            for place, workload in enumerate(workloads):
                change = interval_of(here[workload]["ttfet_own_p95_s_change"])
                if not math.isnan(change.mean):
                    at.append(place + 0.7 * (number / max(1, len(policies) - 1) - 0.5))
                    means.append(change.mean)
            axes.scatter(means, at, s=14, color=palette(number % 10), label=policy)
        axes.axvline(0, color="#222222", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=20)
        axes.set_title(f"load {load:g}", fontsize=9)
        axes.set_xlabel(f"p95 TTFET without tools against {BASE}, %")
        axes.set_yticks(range(len(workloads)), workloads)
    panels[0][0].invert_yaxis()
    panels[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    return figure
