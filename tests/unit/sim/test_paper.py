"""`make paper`: the same seed gives the same bytes, nothing is lost on the way, and the report says what was run."""

from __future__ import annotations

import json
import math
import os
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from conserve.cli import main
from conserve.errors import ConfigError
from conserve.sim.paper import mode
from conserve.sim.paper import run as run_module
from conserve.sim.paper.blocks import Block, Heading, Paragraph, Table, as_html, as_markdown
from conserve.sim.paper.cells import Cell, Store, Values, key_of, run_all
from conserve.sim.paper.claims import CLAIMS, Verdict, judge_line
from conserve.sim.paper.folder import holding
from conserve.sim.paper.full import Trial, as_cell, capacity_per_s, measure
from conserve.sim.paper.misled import KNOBS, MEASURES, Misled
from conserve.sim.paper.mode import SYSTEMS, Setting, paper_conversations
from conserve.sim.paper.plots import draw
from conserve.sim.paper.report import report
from conserve.sim.paper.results import Sample
from conserve.sim.paper.run import run_cell
from conserve.sim.paper.trials import Trials
from conserve.sim.paper.waterfall import ORDERS
from conserve.sim.run import columns, simulate
from conserve.sim.stats import Interval

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from publish_paper import merged, ran  # noqa: E402


def setting(system: str = "strict", **other: object) -> Setting:
    return Setting(system, 2.0, 1, conversations=64, **other)  # type: ignore[arg-type]


def test_the_conversations_are_those_of_the_paper() -> None:
    known = paper_conversations()
    assert len(known) == 256
    assert {len(one.turns) for one in known} == {5}
    assert (known[0].turns[0].prompt_tokens, known[0].turns[1].prompt_tokens) == (17_912, 18_125)
    first = sum(one.turns[0].append_tokens for one in known)
    assert first / sum(one.prompt_tokens_new for one in known) > 0.97, "nearly all prompt tokens come first"


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_setting_gives_the_same_bytes(system: str) -> None:
    first, second = (json.dumps(mode.measure(setting(system))) for _ in range(2))
    assert first == second
    other = json.dumps(mode.measure(Setting(system, 2.0, 2, conversations=64)))
    assert other != first, "another seed is another run"


@pytest.mark.parametrize("off", ["", "e", "be", "cdefg", "abcdefg"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_token_is_generated_once_whatever_is_switched(system: str, off: str) -> None:
    of = setting(system, off=off)
    record, tasks = mode._record(64, 2.0, 1, of.memory_w), mode._tasks(64, 1)
    flips = mode._wrong(64, 0.3, 1) if system == "ampd-paper" else None
    arrivals = list(mode._arrivals(of, record))
    # `checks`: the engines' blocks and the router's books after every event.
    scenario = {**mode._scenario(of, record), "checks": True}
    result = simulate(scenario, columns(tasks, arrivals_s=arrivals, flips=flips), seed=1)
    assert result.diagnosis()["outcome"] == "finished"
    assert sum(result.turns()["output_tokens"]) == sum(task.output_tokens for task in tasks)
    # The first token of a handed-over prompt counts where it is emitted.
    assert sum(result.engines()["generated_tokens"]) == sum(task.output_tokens for task in tasks)


def test_without_mispredictions_the_papers_ampd_is_conserve() -> None:
    ours, theirs = mode.measure(setting()), mode.measure(setting("ampd-paper", error=0.0))
    assert ours == theirs


def test_a_larger_error_rate_adds_wrong_turns_to_those_of_a_smaller() -> None:
    few, many = mode._wrong(200, 0.1, 7), mode._wrong(200, 0.5, 7)
    pairs = [(a, b) for row, other in zip(few, many, strict=True) for a, b in zip(row, other, strict=True)]
    assert all(b for a, b in pairs if a)
    assert sum(a for a, _ in pairs) == pytest.approx(80, abs=30)
    assert not any(row[0] for row in many), "first turns are predicted by nobody"


def test_more_mispredictions_miss_more() -> None:
    missed = [
        mode.measure(Setting("ampd-paper", 2.0, 1, error=error))["ttfet_missed"] for error in (0.0, 0.1, 0.5)
    ]
    assert missed[0] < missed[1] < missed[2]


@pytest.mark.parametrize("off", ["a", "b", "ab", "h"])
def test_switches_that_cannot_be_are_refused(off: str) -> None:
    with pytest.raises(ValueError, match="off is"):
        setting(off=off)


def cells(count: int) -> list[Cell]:
    return [{"kind": "double", "of": number} for number in range(count)]


class Doubler:
    """Counts what it is asked, and is interrupted once it was asked `stops` times."""

    def __init__(self, stops: int | None = None) -> None:
        self.asked: list[object] = []
        self._stops = stops

    def __call__(self, cell: Cell) -> Values:
        if len(self.asked) == self._stops:
            raise KeyboardInterrupt
        self.asked.append(cell["of"])
        return {"value": 2.0 * float(str(cell["of"])), "none": math.nan}


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_all(cells(5), Doubler(stops=3), Store(path), processes=1)
    second, told = Doubler(), []
    run_all(
        cells(5), second, store := Store(path), processes=1, done=lambda done, of: told.append((done, of))
    )
    assert second.asked == [3, 4], "the first three are kept"
    assert told == [(3, 5), (4, 5), (5, 5)]
    values = store.get({"kind": "double", "of": 4})
    assert values is not None
    assert values["value"] == 8
    assert math.isnan(values["none"])


def test_a_line_cut_short_is_run_again_and_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    run_all(cells(2), Doubler(), Store(path), processes=1)
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    again = Doubler()
    run_all(cells(2), again, Store(path), processes=1)
    assert again.asked == [1]
    last = Doubler()
    run_all(cells(2), last, Store(path), processes=1)
    assert last.asked == [], "what was written behind the cut line is read"


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff\xfe\n",
        b"[" * 100_000,
        b'{"key": "a", "values": {"x": 1' + b"0" * 400 + b"}}",
        b'{"key": ["a"], "values": {"x": 1}}\n[1]\nnull',
        b'{"key": "a", "values": {}}',
        b"\0" * 4096,
    ],
    ids=["not UTF-8", "deep", "huge number", "other types", "no values", "zeros"],
)
def test_what_is_no_cell_is_passed_over(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "cells.jsonl"
    run_all(cells(1), Doubler(), Store(path), processes=1)
    path.write_bytes(broken + b"\n" + path.read_bytes() + broken)
    again = Doubler()
    run_all(cells(2), again, store := Store(path), processes=1)
    assert again.asked == [1]
    assert len(store._known) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "cells.jsonl").mkdir()
    for path in (tmp_path / "file" / "cells.jsonl", tmp_path / "cells.jsonl"):
        with pytest.raises(ConfigError, match=r"cannot keep finished runs in .*cells\.jsonl"):
            Store(path)


def test_a_cell_that_differs_anywhere_has_another_key() -> None:
    cell: Cell = {"kind": "full", "seed": 1, "load": 0.5}
    assert key_of(cell) == key_of({"load": 0.5, "seed": 1, "kind": "full"})
    assert len({key_of(cell), key_of({**cell, "seed": 2}), key_of({**cell, "load": 0.25})}) == 3


def test_full_mode_counts_what_it_measures() -> None:
    rate = capacity_per_s("swe-agent", count=30, recorded=False)
    trial = Trial("swe-agent", False, "strict", 0.5 * rate, 1, 30)
    values = measure(trial)
    assert values == measure(trial)
    assert values["handoffs"] == 1
    assert values["finished"] == 1
    assert values["ttfet_p50_s"] <= values["ttfet_p95_s"] <= values["ttfet_p99_s"]
    assert values["ttfet_own_p95_s"] <= values["ttfet_p95_s"], "tools take time"
    assert values["attained_2x"] <= values["attained_5x"] <= 100


def test_an_unstable_majority_has_no_percentile(tmp_path: Path) -> None:
    trials = Trials(("swe-agent",), ("collocated",), (0.5,), seeds=3, conversations=30, recorded=False)
    store = Store(tmp_path / "cells.jsonl")
    for probe in trials.probes():
        store.put(probe, {"capacity_per_s": 1.0})
    run = measure(Trial("swe-agent", False, "collocated", 0.5, 1, 30))
    for at, cell in enumerate(trials.cells(store)):
        store.put(cell, {**run, "unstable": float(at > 0)})
    [row] = trials.rows(store)
    assert row["unstable"] == 2
    assert row["ttfet_p95_s"]["mean"] is None
    store.put(as_cell(Trial("swe-agent", False, "collocated", 0.5, 2, 30)), {**run, "unstable": 0.0})
    [row] = trials.rows(store)
    assert (row["unstable"], row["ttfet_p95_s"]["count"]) == (1, 2), (
        "two stable seeds of three are a majority"
    )


def test_one_seed_without_a_number_leaves_no_mean() -> None:
    known, unknown = {"x": 1.0, "unstable": 0.0}, {"x": math.nan, "unstable": 1.0}
    both, one = Sample((known, known)), Sample((known, unknown))
    assert (both.mean("x").mean, both.unstable) == (1.0, 0)
    assert math.isnan(one.mean("x").mean), "the others would be the lucky ones"
    assert math.isnan(one.change(both, "x").mean)
    assert one.unstable == 1


def test_the_command_writes_the_report_and_does_not_run_twice(tmp_path: Path) -> None:
    words = ["sim", "paper", "--small", "--seeds", "1", "--part", "waterfall", "--processes", "1"]
    words += ["--out", str(tmp_path)]
    assert main(words) == 0
    results = json.loads((tmp_path / "paper.json").read_text(encoding="utf-8"))
    forth, back = (order["steps"] for order in results["waterfall"])
    assert [len(forth), len(back)] == [1 + len(order) for order in ORDERS]
    assert forth[0] == back[0], "both begin with the paper's method"
    assert {**forth[-1], "off": ""} == {**back[-1], "off": ""}, "and end with all switches off"
    page = (tmp_path / "paper.md").read_text(encoding="utf-8")
    assert "![" in page
    assert "waterfall.svg" in page
    pictures = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert set(pictures) == {"waterfall.svg"}
    draw(results, tmp_path / "again")
    assert (tmp_path / "again" / "waterfall.svg").read_bytes() == pictures["waterfall.svg"]
    lines = (tmp_path / "cells.jsonl").read_text(encoding="utf-8").split()
    assert main(words) == 0
    assert (tmp_path / "cells.jsonl").read_text(encoding="utf-8").split() == lines


def test_every_kind_of_error_begins_at_the_same_point(tmp_path: Path) -> None:
    misled, store = Misled(seeds=1, conversations=30, recorded=False), Store(tmp_path / "cells.jsonl")
    run_all(misled.probes(), run_cell, store, processes=1)
    run_all(misled.cells(store), run_cell, store, processes=1)
    told = misled.gather(store)
    assert [(row["knob"], row["measure"]) for row in told["ampd"]] == list(product(KNOBS, MEASURES))
    for name in MEASURES:
        lines = {row["knob"]: row["values"] for row in told["ampd"] if row["measure"] == name}
        assert len({line[0]["mean"] for line in lines.values()}) == 1, "no error is no error of any kind"
        if name == "ttfet_own_p95_s":
            assert len({line[-1]["mean"] for line in lines.values()}) > 1, "half the decisions wrong is felt"


def test_the_command_names_a_wrong_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "paper", "--part", "figures", "--out", str(tmp_path)]) == 2
    assert "part is 'figures'" in capsys.readouterr().err
    assert main(["sim", "paper", "--trace", "claude", "--out", str(tmp_path)]) == 2
    assert "trace is 'claude'" in capsys.readouterr().err


def test_a_report_is_the_same_words_on_both_pages() -> None:
    blocks: list[Block] = [
        Heading(2, "A & B"),
        Paragraph("`x` is **<5**"),
        Table(("name", "value"), (("strict", "1.5"),)),
    ]
    assert as_markdown(blocks, figures="") == (
        "## A & B\n\n`x` is **<5**\n\n| name | value |\n| --- | ---: |\n| strict | 1.5 |\n"
    )
    page = as_html(blocks, title="T", figures="")
    assert "<h2>A &amp; B</h2>" in page
    assert "<code>x</code> is <strong>&lt;5</strong>" in page
    assert '<td>strict</td><td class="n">1.5</td>' in page


def test_the_published_run_is_a_whole_one() -> None:
    published = json.loads((ROOT / "bench" / "results" / "paper.json").read_text(encoding="utf-8"))
    assert [row["id"] for row in published["claims"]] == list(CLAIMS), "each claim has its row"
    assert {row["verdict"] for row in published["claims"]} <= {verdict.value for verdict in Verdict}
    assert published["seeds"] >= 10
    assert not published["small"]
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert page == as_markdown(report(published), figures="assets/paper/"), (
        "run scripts/write_reference.py: the page says something else than the results"
    )


def test_two_runs_in_one_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "paper", "--small", "--seeds", "1", "--part", "claims", "--out", str(tmp_path)]
    with holding(tmp_path, small=True):
        assert main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"another run, process {os.getpid()}, writes to" in said
    assert not (tmp_path / "cells.jsonl").exists(), "nothing was run"
    with holding(tmp_path, small=True):
        pass  # It is free again.


def test_a_small_run_does_not_overwrite_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / "paper.json").write_text('{"small": false}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"paper\.json is of a whole run; .* for a small run"):
        holding(tmp_path, small=True).__enter__()
    with holding(tmp_path, small=False):
        pass
    (tmp_path / "paper.json").write_text("{", encoding="utf-8")
    with holding(tmp_path, small=True):
        pass  # Half a report is of no run.


def test_a_folder_that_cannot_be_held_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot keep finished runs in .*file"):
        holding(tmp_path / "file", small=True).__enter__()


def test_minus_nought_is_nought() -> None:
    told = run_module._round({"values": [-0.0, -1e-12, 0.5, math.nan]})
    assert str(told) == "{'values': [0.0, 0.0, 0.5, None]}"


def test_overlapping_spans_are_counted_at_their_most() -> None:
    began, ended = np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, 4.0])
    assert mode._most_at_once(began, ended) == 2, "one ends where another begins"


def test_a_line_is_judged_by_its_spread_and_its_bend() -> None:
    straight, bent = Interval(0.1, -1, 1, 11), Interval(5, 4, 6, 11)
    judged = [judge_line(r2, bend) for r2, bend in product((0.95, 0.5), (straight, bent))]
    assert judged == [Verdict.REPRODUCED, Verdict.PARTLY, Verdict.PARTLY, Verdict.NOT]


def test_a_part_that_ran_later_takes_the_place_of_the_published_one() -> None:
    alike = {"seeds": 10, "small": False, "recorded": True, "baseline": "ampd"}

    def full(*workloads: str, ttft: float) -> dict[str, object]:
        by_name = dict.fromkeys(workloads, 1)
        return {
            "policies": ["strict"],
            "rows": [{"workload": name, "ttft": ttft} for name in workloads],
            **dict.fromkeys(("conversations", "capacity_per_s", "first_share"), by_name),
        }

    old = {
        **alike,
        "claims": ["old"],
        "waterfall": ["old"],
        "full": full("swebench", "mooncake-chat", ttft=1.0),
    }
    new = {**alike, "claims": ["new"], "full": full("claude-code-fresh", "mooncake-chat", ttft=2.0)}
    told = merged({**old, "ran": ran(old, "aaa")}, {**new, "ran": ran(new, "bbb")})
    assert (told["claims"], told["waterfall"]) == (["new"], ["old"])
    assert [(row["workload"], row["ttft"]) for row in told["full"]["rows"]] == [
        ("swebench", 1.0),
        ("claude-code-fresh", 2.0),
        ("mooncake-chat", 2.0),
    ]
    assert told["ran"] == {
        "claims": "bbb",
        "waterfall": "aaa",
        "swebench": "aaa",
        "mooncake-chat": "bbb",
        "claude-code-fresh": "bbb",
    }
    fewer = {**new, "seeds": 3, "ran": ran(new, "bbb")}
    assert merged({**old, "ran": ran(old, "aaa")}, fewer) == fewer, "seeds are not mixed"
