"""The tables of `conserve bench live`."""

from __future__ import annotations

import dataclasses
import math

import pytest
from rich.console import Console

from conserve.cli._live_table import show
from conserve.live.compare import Comparison
from conserve.live.engines import Engines, from_urls, tiny
from conserve.live.outcome import Outcome
from conserve.live.plan import LivePlan
from conserve.sim.stats import Interval

NUMBER = Interval(12.34, 11.11, 13.57, 3)
PLAN = LivePlan("claude-code-fresh", ("strict", "follow-kv"), 0.25)
ONE_ROUND = Interval(12.34, -math.inf, math.inf, 1)


def outcome(policy: str) -> Outcome:
    return Outcome(
        policy=policy,
        ttfet_p50_s=NUMBER,
        ttfet_p95_s=NUMBER,
        ttfet_no_tool_p95_s=NUMBER,
        ttft_p95_s=NUMBER,
        tbt_last_p95_s=NUMBER,
        tokens_per_j=NUMBER,
        handoffs=1.0,
        computed_ratio=1.02,
        preemptions=0,
        failed=0,
        unstable=0,
        ttfet_p95_change=NUMBER,
        ttft_p95_change=NUMBER,
        tbt_last_p95_change=NUMBER,
    )


def printed(plan: LivePlan, engines: Engines, *outcomes: Outcome, width: int = 250) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        show(plan, engines, Comparison([], list(outcomes), ()), console)
    return captured.get().splitlines()


def title(lines: list[str]) -> str:
    """All of it, however many lines it takes."""
    return " ".join(lines[: lines.index("")])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_title_is_cut(
    width: int,
) -> None:
    lines = printed(
        PLAN, Engines("1 prefiller, 2 decoders", ()), outcome("strict"), outcome("follow-kv"), width=width
    )
    assert max(map(len, lines)) <= width
    for title in (
        "p50 TTFET s",
        "p95 without tools",
        "last TBT ms",
        "computed",
        "tokens/J",
        "p95 last-turn TBT",
    ):
        assert any(title in line for line in lines), f"{title} is cut or in two lines"
    assert not any("…" in line for line in lines)
    assert not [line for line in lines if line != line.rstrip()], "no line ends in spaces"


def test_the_title_says_whose_workers_all_do_both() -> None:
    names = ("strict", "follow-kv", "follow-kv@both", "collocated")
    plan = LivePlan("swe-agent", names, 0.25)
    shown = printed(plan, tiny("tiny:1p2d"), *map(outcome, names))
    assert title(shown).endswith("; every worker does both under follow-kv@both, collocated")


def test_the_title_names_all_that_changes_what_is_measured() -> None:
    plan = LivePlan(
        "synthetic:swe-agent",
        ("strict",),
        0.25,
        conversations=1,
        rounds=2,
        seed=7,
        scale=0.1,
        gap_scale=0.5,
        max_turns=3,
    )
    assert title(printed(plan, tiny("tiny:1p2d", kv_blocks=99), outcome("strict"))) == (
        "tiny:1p2d, model random, 99 KV blocks each: synthetic:swe-agent (generated, not recorded) at scale 0.1, "
        "tool times at 0.5, 3 turns each at most, 0.25/s, 1 conversation, 2 rounds from seed 7"
    )
    running = from_urls(
        ["http://p0:1"], ["http://d0:1", "http://d1:1"], ["http://w0:1"], connector="mooncake"
    )
    assert running.words == "running workers, 1 prefiller, 2 decoders, 1 both, connector mooncake"


def test_where_there_is_no_spread_it_is_said_and_what_to_do() -> None:
    engines = tiny("tiny:1p2d")
    alone = dataclasses.replace(outcome("follow-kv"), ttfet_p95_s=ONE_ROUND, ttfet_p95_change=ONE_ROUND)
    once = printed(dataclasses.replace(PLAN, rounds=1), engines, outcome("strict"), alone)
    assert any(line.startswith("One round has no spread") and "--rounds 3" in line for line in once)
    rest_unstable = printed(PLAN, engines, outcome("strict"), alone)
    assert any(line.startswith("A figure without ± is of one round") for line in rest_unstable)
    assert not any(
        "chance" in line for line in printed(PLAN, engines, outcome("strict"), outcome("follow-kv"))
    )


def test_a_backlog_that_grew_is_no_riddle() -> None:
    def lines(*, unstable: int = 0, failed: int = 0) -> list[str]:
        other = dataclasses.replace(outcome("follow-kv"), unstable=unstable, failed=failed)
        return [
            line for line in printed(PLAN, tiny("tiny:1p2d"), outcome("strict"), other) if "backlog" in line
        ]

    assert lines(unstable=2) == [
        "follow-kv: the backlog grew in 2 of 3 rounds, more came than was served; compare below 0.25/s."
    ]
    assert lines(unstable=2, failed=3) == [], "failures are named one by one"
    assert lines() == []
