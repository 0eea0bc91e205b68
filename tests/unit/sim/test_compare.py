"""Policies side by side: the same GPUs and arrivals, the same numbers for the same seeds, and no percentile for what is not stable."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from conserve import ConfigError
from conserve.cli import main
from conserve.policies import DEFAULT_POLICY
from conserve.sim.compare import POLICIES, PRESETS, Fleet, Plan, compare
from conserve.sim.contender import split_names
from conserve.sim.run import columns, simulate
from conserve.sim.workload import generate


def plan(policies: tuple[str, ...], *, rate_per_s: float = 0.2, seeds: int = 2) -> Plan:
    return Plan("swe-agent", policies, rate_per_s, Fleet(1, 2), conversations=30, seeds=seeds)


def test_every_policy_runs_on_as_many_gpus() -> None:
    fleet = Fleet.read("1P3D")
    assert [engine["role"] for engine in fleet.engines("strict")] == [
        "prefiller",
        "decoder",
        "decoder",
        "decoder",
    ]
    for alike in ("collocated", "strict@both", "follow-kv@both", "ampd(min, X=0)@both"):
        assert [engine["role"] for engine in fleet.engines(alike)] == ["both"] * 4
    assert fleet.engines("follow-kv") == fleet.engines("strict"), "as `conserve serve` has it"
    for text in ("3", "0P3D", "1P0D", "P3D", "1P00D", "1P1025D", f"{'9' * 5000}P1D"):
        with pytest.raises(ConfigError, match="as 1P3D"):
            Fleet.read(text)


def test_handoffs_are_those_that_each_policy_makes() -> None:
    told = dict(zip(POLICIES, compare(plan(POLICIES)), strict=True))
    turns = told["disaggregated"].handoffs
    assert told["strict"].handoffs == 1
    assert told["collocated"].handoffs == told["collocated-spread"].handoffs == 0
    assert 1 < told["ppd"].handoffs < turns, "only long turns"
    assert 1 <= told["ampd"].handoffs < turns
    assert told["collocated-spread"].recomputed_share > told["collocated"].recomputed_share
    assert all(one.unstable == 0 for one in told.values())


def test_the_default_does_what_the_split_says_and_with_both_what_equal_workers_do() -> None:
    split, alike, strict, collocated = compare(
        plan(("follow-kv", "follow-kv@both", "strict@both", "collocated"))
    )
    assert (split.policy, split.fleet, split.handoffs) == ("follow-kv", "1P2D", 1)
    assert (alike.policy, alike.fleet, alike.handoffs) == ("follow-kv@both", "3 both", 0)
    assert strict.fleet == collocated.fleet == "3 both"
    assert strict.ttfet_p95_s == collocated.ttfet_p95_s, "nobody computes for another"


def test_any_policy_runs_where_all_do_both() -> None:
    found = compare(
        plan(("oracle@both", "disaggregated(pcache=0)@both", "deflect(tbt_ms=60) @both"), seeds=1)
    )
    assert [one.policy for one in found] == [
        "oracle(slo, X=1, pcache=1)@both",
        "disaggregated(pcache=0)@both",
        "deflect(tbt_ms=60)@both",
    ]
    assert all(one.unstable == 0 for one in found)


def test_the_same_seeds_give_the_same_numbers() -> None:
    assert compare(plan(("strict", "follow-kv"))) == compare(plan(("strict", "follow-kv")))


def test_a_policy_does_not_differ_from_itself() -> None:
    same, again = compare(plan(("strict", "strict")))
    assert (again.ttfet_p95_change.mean, again.ttfet_p95_change.low) == (0, 0)
    assert same.ttfet_p95_s == again.ttfet_p95_s


def test_an_overloaded_fleet_has_no_percentile() -> None:
    [one] = compare(Plan("swebench", ("strict",), 20.0, Fleet(1, 1), conversations=120, seeds=1))
    assert one.unstable == 1
    assert math.isnan(one.ttfet_p95_s.mean)


def test_the_command_prints_numbers_that_a_program_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--policy", "strict", "--conversations", "20", "--seeds", "1", "--rate", "0.2", "--json"]
    assert main(words) == 0
    [one] = json.loads(capsys.readouterr().out)
    assert one["policy"] == "strict"
    assert one["handoffs"] == 1
    assert one["ttfet_p95_s"]["high"] is None, "one seed has no interval, and JSON no infinity"


def test_the_command_names_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--policy", "strict,guess"]) == 2
    assert "policy is 'guess'" in capsys.readouterr().err
    assert main(["sim", "--policy", "strict,folow-kv@both"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean follow-kv?\n")
    assert main(["sim", "--policy", "strict,ampd(luck)"]) == 2
    assert "rule = luck is out of range" in capsys.readouterr().err
    assert main(["sim", "--policy", "strict@bot"]) == 2
    assert "with @both at the end for workers that all do both" in capsys.readouterr().err
    assert main(["sim", "--trace", "nothere"]) == 2
    assert capsys.readouterr().err.startswith("conserve sim: --trace nothere: choose one of swebench, ")
    assert main(["sim", "--preset", "h100-8b"]) == 2
    shown = capsys.readouterr().err
    assert shown == f"conserve sim: preset is 'h100-8b'; choose from {', '.join(PRESETS)}\n"


def test_presets_are_those_of_the_core() -> None:
    workload = columns(list(generate("swe-agent", 1, seed=1)), arrivals_s=[0.0])
    with pytest.raises(ConfigError) as refused:
        simulate({"engines": [{"role": "both", "preset": "none"}]}, workload, seed=1)
    assert sorted(re.findall(r"`([\w-]+)`", str(refused.value))[1:]) == sorted(PRESETS)


def test_the_title_says_what_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--policy", "strict", "--conversations", "1", "--seeds", "1", "--preset", "l40s-8b"]
    assert main([*words, "--fleet", "1P2D"]) == 0
    title = " ".join(capsys.readouterr().out.split())
    assert title.startswith("1P2D of l40s-8b (L40S, 8B model), swe-agent (generated, not recorded), ")
    assert "1 conversation, 1 seed" in title


def test_without_a_policy_the_default_is_what_the_others_are_compared_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sim", "--conversations", "5", "--seeds", "1", "--fleet", "1P2D"]
    assert main([*words, "--json"]) == 0
    told = [(one["policy"], one["fleet"]) for one in json.loads(capsys.readouterr().out)]
    assert told == [(DEFAULT_POLICY, "1P2D"), ("strict", "1P2D"), ("collocated", "3 both")]
    assert main([*words, "--policy", "follow-kv,collocated,strict@both"]) == 0
    title = " ".join(capsys.readouterr().out.split()).partition(" policy ")[0]
    assert title.endswith("1 seed; every worker does both under collocated, strict@both")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--rate", "1e-12", "rate is 1e-12; it must be from 0.001 to 10000 conversations per second"),
        ("--rate", "nan", "it must be from 0.001 to 10000"),
        ("--rate", "1e5", "it must be from 0.001 to 10000"),
        ("--conversations", "1000000000", "100000"),
        ("--seeds", "1000000", "1000"),
    ],
)
def test_what_would_run_for_ever_is_refused(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", option, value]) == 2
    shown = capsys.readouterr().err
    assert option.removeprefix("--") in shown
    assert said in shown
    with pytest.raises(ConfigError, match="conversations is 100001; it must be from 1 to 100000"):
        Plan("swe-agent", ("strict",), 1.0, Fleet(1, 1), conversations=100_001)


@pytest.mark.parametrize("text", ["１P３D", "0P1D", "1P0D", "1024P1D", "1P1024D", "99999P1D", "1P3D ", ""])
def test_a_fleet_that_cannot_be_is_named_with_the_limit(text: str) -> None:
    with pytest.raises(ConfigError, match="1 or more of each, at most 1024 in all"):
        Fleet.read(text)
    assert Fleet.read("1P1023D").decoders == 1023


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    words = ["sim", "--policy", "strict,collocated", "--conversations", "20", "--seeds", "2", "--rate", "0.2"]
    assert main(words) == 0
    # Without the colours.
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()]
    assert all(len(line) <= width and "…" not in line for line in lines), lines
    heads = [line for line in lines if line.startswith("policy")]
    for title in ("p50 TTFET s", "p95 against strict", "tokens/J", "handoffs", "recomputed", "unstable"):
        assert any(title in line for line in heads), f"{title} in {heads}"


def test_variants_of_a_policy_are_compared_and_named_in_full() -> None:
    text = "ampd(min, X=0),ampd(static,threshold=inf), disaggregated(pcache=0,delta=0),strict"
    found = compare(plan(split_names(text), seeds=1))
    assert [one.policy for one in found] == [
        "ampd(min, X=0, pcache=1)",
        "ampd(static, threshold=inf, X=1, pcache=1)",
        "disaggregated(pcache=0, delta=0)",
        "strict",
    ]
    assert found[1].ttfet_p95_s == found[3].ttfet_p95_s, "no turn is long enough: as strict"
    assert found[2].recomputed_share > 0, "the history is computed again"


def test_one_table_calls_a_policy_by_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "--policies", "ampd(min)@both,strict", "--conversations", "3", "--seeds", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    full = "ampd(min, X=1, pcache=1)@both"
    words_alone = " ".join(shown.split())
    assert f"every worker does both under {full}" in words_alone
    assert f"p95 against {full}" in words_alone
    assert words_alone.count("ampd(") == words_alone.count(full)
    assert "One seed has no spread" in shown
    assert not [line for line in shown.splitlines() if line != line.rstrip()], "no line ends in spaces"


def test_traces_and_repeats_are_called_as_in_the_comparison_on_engines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["sim", "--policy", "strict", "--conversations", "3", "--traces", str(tmp_path)]
    assert main([*words, "--trace", "synthetic:swe-agent", "--rounds", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "swe-agent (generated, not recorded), 0.3/s, 3 conversations, 2 seeds" in shown
    assert main([*words, "--trace", "swe-agent"]) == 2
    assert f"cannot read the trace {tmp_path}" in capsys.readouterr().err
    assert main([*words, "--trace", "synthetic:swe-agnt"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean swe-agent?\n")
