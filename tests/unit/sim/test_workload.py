"""Traces and generators: what is read is what was recorded, and a broken record is named."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from conserve import ConfigError
from conserve.sim.workload import (
    WORKLOADS,
    TurnRecord,
    bursty,
    conversations,
    generate,
    poisson,
    read_arrivals,
    read_jsonl,
    read_length_table,
    recorded,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST = {"append_tokens": 100, "input_tokens": 100, "output_tokens": 20, "gap_s": None, "visible": False}
SECOND = {
    "append_tokens": 30,
    "input_tokens": 150,
    "output_tokens": 10,
    "gap_s": 4.0,
    "gap_adj_s": 1.5,
    "visible": True,
}


def write_jsonl(path: Path, *records: object) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    return path


def test_a_record_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl.gz", {"id": "a", "arrival_s": 2.5, "turns": [FIRST, SECOND]})
    [one] = read_jsonl(path)
    assert one.arrival_s == 2.5
    assert one.turns == (
        TurnRecord(append_tokens=100, output_tokens=20),
        TurnRecord(append_tokens=30, output_tokens=10, reuse_tokens=120, gap_s=1.5, visible=True),
    )
    assert one.turns[1].prompt_tokens == 150
    assert one.peak_context_tokens == 160
    assert one.visible_turn == 1


def test_an_empty_append_becomes_one_token(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl.gz", {"id": "a", "turns": [FIRST, SECOND | {"append_tokens": 0}]})
    [one] = read_jsonl(path)
    assert (one.turns[1].append_tokens, one.turns[1].reuse_tokens) == (1, 149)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([], "not an object"),
        ({"turns": [FIRST]}, "id is not a text"),
        ({"id": "a", "turns": []}, "at least one turn"),
        ({"id": "a", "turns": [FIRST, SECOND | {"input_tokens": -1}]}, "turn 2: input_tokens is -1"),
        ({"id": "a", "turns": [FIRST | {"input_tokens": 0}]}, "turn 1: input_tokens is 0"),
        ({"id": "a", "turns": [FIRST | {"output_tokens": 1.5}]}, "output_tokens is 1.5"),
        ({"id": "a", "turns": [FIRST | {"output_tokens": True}]}, "output_tokens is True"),
        ({"id": "a", "turns": [FIRST | {"gap_s": -3}]}, "gap_s is -3"),
        ({"id": "a", "arrival_s": "soon", "turns": [FIRST]}, "arrival_s is 'soon'"),
    ],
)
def test_a_broken_record_is_refused_by_file_and_line(tmp_path: Path, record: object, problem: str) -> None:
    path = write_jsonl(tmp_path / "t.jsonl.gz", {"id": "good", "turns": [FIRST]}, record)
    reading = read_jsonl(path)
    assert next(reading).id == "good", "what stands before the fault is served"
    with pytest.raises(ConfigError) as caught:
        next(reading)
    assert f"{path}:2" in str(caught.value)
    assert problem in str(caught.value)


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl.gz", *({"id": str(n), "turns": [FIRST]} for n in range(200)))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ConfigError, match=r"cannot read the trace .*t\.jsonl\.gz"):
        list(read_jsonl(path))
    (tmp_path / "u.jsonl").write_text('{"id": "a"')
    with pytest.raises(ConfigError, match=r"u\.jsonl:1: not JSON"):
        list(read_jsonl(tmp_path / "u.jsonl"))
    with pytest.raises(ConfigError, match="nothing"):
        list(read_jsonl(tmp_path / "nothing"))
    broken = bytearray(path.read_bytes())
    broken[10:40] = b"\xff" * 30
    path.write_bytes(broken)
    with pytest.raises(ConfigError, match=r"cannot read the trace .*t\.jsonl\.gz"):
        list(read_jsonl(path))
    (tmp_path / "u.jsonl").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"u\.jsonl:1: not JSON"):
        list(read_jsonl(tmp_path / "u.jsonl"))
    (tmp_path / "u.csv").write_text("t_s\n" + "1" * 200_000)
    with pytest.raises(ConfigError, match=r"cannot read the trace .*u\.csv"):
        list(read_arrivals(tmp_path / "u.csv"))


def test_the_length_table_groups_the_turns_of_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text(
        "conv_id,iter_id,appended_input,total_input,out_token_size,carried_over\n"
        "0,0,900,900,50,0\n0,1,60,1010,40,950\n1,0,700,700,9,0\n"
    )
    first, second = read_length_table(path)
    assert first.turns == (
        TurnRecord(append_tokens=900, output_tokens=50),
        TurnRecord(append_tokens=60, output_tokens=40, reuse_tokens=950, visible=True),
    )
    assert second.output_tokens == 9
    [cut, _] = read_length_table(path, max_turns=1)
    assert [turn.visible for turn in cut.turns] == [True], "the last turn that is kept is the one a user sees"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("conv_id,iter_id\n", "no column total_input, out_token_size, carried_over"),
        (
            "conv_id,iter_id,total_input,out_token_size,carried_over\n0,1,10,1,0\n",
            "iter_id is 1 where 0 is due",
        ),
        (
            "conv_id,iter_id,total_input,out_token_size,carried_over\n0,0,10,1,10\n",
            "carried_over 10 is not below",
        ),
        ("conv_id,iter_id,total_input,out_token_size,carried_over\n0,0,x,1,0\n", "total_input is 'x'"),
    ],
)
def test_a_broken_row_is_refused_by_file_and_line(tmp_path: Path, rows: str, problem: str) -> None:
    path = tmp_path / "l.csv"
    path.write_text(rows)
    with pytest.raises(ConfigError) as caught:
        list(read_length_table(path))
    assert f"{path}:{rows.count(chr(10))}" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_generator_keeps_to_its_percentiles_and_to_its_seed(name: str) -> None:
    many = list(generate(name, 400, seed=7))
    assert many == list(generate(name, 400, seed=7))
    assert many != list(generate(name, 400, seed=8))
    for one in many:
        context = 0
        for index, turn in enumerate(one.turns):
            assert turn.append_tokens >= 1
            assert turn.reuse_tokens == context or turn.reset, (
                "a turn reuses the whole context unless it is reset"
            )
            assert turn.reuse_tokens <= context
            assert (turn.gap_s == 0) or index > 0
            context = turn.context_tokens
        assert one.turns[-1].visible


def test_a_generated_median_is_the_recorded_one() -> None:
    firsts = [one.turns[0].append_tokens for one in generate("claude-code-fresh", 2000, seed=1)]
    # 2,000 draws: the median's share has a standard deviation of 1.1 %, worth about 60 tokens here.
    assert abs(np.median(firsts) - 19_074) < 400


def test_recorded_conversations_repeat_under_new_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "lmcache_miniswe.jsonl.gz", *({"id": n, "turns": [FIRST]} for n in "abc"))
    taken = conversations("mini-swe", 7, seed=3, traces=tmp_path)
    assert len({one.id for one in taken}) == 7
    assert {one.id for one in taken[:3]} == {"a", "b", "c"}, "each record once before any twice"
    assert taken == conversations("mini-swe", 7, seed=3, traces=tmp_path)


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="choose one of swebench, claude-code-fresh"):
        conversations("swe", 3, seed=0, traces=None)
    with pytest.raises(ConfigError, match="conversations is 0"):
        conversations("swebench", 0, seed=0, traces=None)


def test_poisson_has_the_rate_asked_for() -> None:
    times = poisson(20_000, rate_per_s=4.0, seed=5)
    assert times == poisson(20_000, rate_per_s=4.0, seed=5)
    # The mean of 20,000 exponential gaps has a standard deviation of 0.7 %.
    assert times[-1] == pytest.approx(5_000, rel=0.03)


def test_bursty_gaps_have_the_variation_asked_for() -> None:
    gaps = np.diff(bursty(50_000, rate_per_s=1.0, seed=5, cv=3.0))
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, rel=0.05)
    with pytest.raises(ConfigError, match="cv is 0"):
        bursty(5, rate_per_s=1.0, seed=5, cv=0)


def test_recorded_times_are_stretched_to_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t_s,input_tokens\n10,1\n12,1\n18,1\n")
    times = list(read_arrivals(path))
    assert recorded(3, times) == [0, 2, 8]
    assert recorded(3, times, rate_per_s=2.0) == [0, 0.25, 1.0], "two gaps in one second"
    with pytest.raises(ConfigError, match="3 times, 4 conversations"):
        recorded(4, times)
    path.write_text("t_s\n3\n2\n")
    with pytest.raises(ConfigError, match=r"a\.csv:3: t_s is 2"):
        list(read_arrivals(path))
