"""The tables of `conserve bench live`."""

from __future__ import annotations

import pytest
from rich.console import Console

from conserve.cli._live_table import show
from conserve.live.compare import Comparison
from conserve.live.engines import Engines, tiny
from conserve.live.outcome import Outcome
from conserve.live.plan import LivePlan
from conserve.sim.stats import Interval

NUMBER = Interval(12.34, 11.11, 13.57, 3)
PLAN = LivePlan("claude-code", ("strict", "follow-kv"), 0.25)


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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_title_is_cut(
    width: int,
) -> None:
    told = Comparison([], [outcome("strict"), outcome("follow-kv")], ())
    console = Console(width=width)
    with console.capture() as captured:
        show(PLAN, Engines("1 prefiller, 2 decoders", ()), told, console)
    lines = captured.get().splitlines()
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


def test_the_title_says_whose_workers_all_do_both() -> None:
    names = ("strict", "follow-kv", "follow-kv@both", "collocated")
    told = Comparison([], [outcome(name) for name in names], ())
    console = Console(width=200)
    with console.capture() as captured:
        show(LivePlan("claude-code", names, 0.25), tiny("tiny:1p2d"), told, console)
    title = captured.get().splitlines()[0].strip()
    assert title.endswith("3 rounds; every worker does both under follow-kv@both, collocated")
