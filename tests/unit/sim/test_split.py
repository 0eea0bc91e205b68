"""What the time to the first answer was spent on: parts that add up, in the columns, the comparison and the paper's measure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conserve.cli import main
from conserve.sim.compare import Fleet, Plan, compare
from conserve.sim.paper import mode
from conserve.sim.paper.causes import WHOLE, causes
from conserve.sim.paper.mode import SYSTEMS, Setting
from conserve.sim.paper.report import _causes, _main_cause
from conserve.sim.paper.results import Sample
from conserve.sim.run import columns, simulate
from conserve.sim.split import PARTS, parts_of, split
from conserve.sim.workload import generate, poisson

PAIR = {"engines": [{"role": "prefiller"}, {"role": "decoder"}]}


def test_the_columns_of_a_run_are_the_parts_and_add_up() -> None:
    tasks = list(generate("swe-agent", 20, seed=3))
    workload = columns(tasks, arrivals_s=poisson(20, rate_per_s=1.0, seed=4))
    result = simulate(PAIR, workload, seed=5)
    told = result.conversations()
    named = [name for name in told if name.startswith("ttfet_") and name != "ttfet_s"]
    assert named == [f"ttfet_{part}_s" for part in PARTS]
    parts = parts_of(result)
    assert sum(parts.values()) == pytest.approx(told["ttfet_s"], rel=1e-12)
    assert parts["tool"] == pytest.approx(told["tool_s"], rel=1e-12)
    # One handoff each, waits in the queues, decodes of the turns before the last.
    for part in ("tool", "network", "engine_queue", "compute", "transfer", "decoder_queue", "decode"):
        assert parts[part].max() > 0, part
    assert parts["slept"].max() == 0


def test_the_split_of_the_slowest_is_of_those_from_p95_on() -> None:
    times = np.array([*range(1, 101), math.nan], dtype=float)
    parts = {"one": times * 0.25, "two": times * 0.75}
    of = split(parts, times)
    assert of.mean == {"one": 50.5 * 0.25, "two": 50.5 * 0.75}
    assert of.tail == {"one": 98 * 0.25, "two": 98 * 0.75}, "96 to 100"
    nobody = split(parts, np.full(101, math.nan))
    assert all(math.isnan(mean) for mean in (*nobody.mean.values(), *nobody.tail.values()))


def test_a_comparison_says_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    strict, fair = compare(
        Plan("swe-agent", ("strict", "collocated"), 0.2, Fleet(1, 2), conversations=30, seeds=2)
    )
    for one in (strict, fair):
        tail = math.fsum(part.mean for part in one.ttfet_tail_parts_s.values())
        assert tail >= one.ttfet_p95_s.mean
        assert tail > math.fsum(part.mean for part in one.ttfet_parts_s.values())
    assert strict.ttfet_parts_s["transfer"].mean > 0
    assert fair.ttfet_parts_s["transfer"].mean == 0
    assert main(["sim", "--conversations", "20", "--seeds", "2", "--rate", "0.2", "--fleet", "1P2D"]) == 0
    shown = capsys.readouterr().out
    assert "where TTFET goes" in shown
    assert "engine queue" in shown
    assert "slept" not in shown, "nobody does"


@pytest.mark.parametrize("off", ["", "c", "e", "be", "cdefg", "abcdefg"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_parts_of_the_papers_measure_add_up_to_it(system: str, off: str) -> None:
    of = Setting(system, 2.0, 1, conversations=64, off=off)
    record, tasks = mode._record(64, 2.0, 1, of.memory_w), mode._tasks(64, 1)
    flips = mode._wrong(64, of.error, 1) if system == "ampd-paper" else None
    workload = columns(tasks, arrivals_s=list(mode._arrivals(of, record)), flips=flips)
    result = simulate(mode._scenario(of, record), workload, seed=1)
    turns = mode._by_turn(result, 64, mode._TURN_COLUMNS)
    left_out, added, by_part = mode._corrections(of, record, tasks, turns)
    whole = np.asarray(result.conversations()["ttfet_s"]) + (added - left_out)
    parts = sum(seconds + by_part[part] for part, seconds in parts_of(result).items())
    assert parts == pytest.approx(whole, rel=1e-9)
    values = mode.measure(of)
    tail = math.fsum(values[f"ttfet_tail_{part}_x"] for part in PARTS)
    assert tail >= values["ttfet_p95_x"]


def test_causes_add_up_and_name_the_prefillers_queue() -> None:
    ours, base = (
        Sample(tuple(mode.measure(Setting(system, 2.0, seed)) for seed in (1, 2)))
        for system in ("strict", "ampd-paper")
    )
    rows = causes(ours, base)
    assert [row["part"] for row in rows][-1] == WHOLE
    for name in ("ours", "base", "difference"):
        *parts, whole = (row[name]["mean"] for row in rows)
        assert math.fsum(parts) == pytest.approx(whole, rel=1e-9), name
    table = _causes(rows)
    assert [row[0] for row in table.rows] == [*(PARTS[row["part"]] for row in rows[:-1]), "**all**"]
    assert f"{PARTS['engine_queue']}, -" in _main_cause(rows)
    by_part = {row["part"]: row["difference"]["mean"] for row in rows}
    assert by_part["engine_queue"] < 0.5 * by_part[WHOLE] < 0, (
        "most of it is the backlog that wrong turns wait for"
    )
    assert "line" not in by_part, "the paper's measure leaves it out"
