"""What `conserve top` makes of a router's numbers, and what it says where there is no router."""

from __future__ import annotations

import math
from typing import Any

import pytest
from rich.console import Console

from conserve.cli import main
from conserve.cli._top_look import Look, quantile, view
from conserve.cli._top_table import tables

INF = math.inf
WORKER: dict[str, Any] = {
    "id": 0, "name": "d0", "role": "decoder", "tier": "slow", "health": "ready", "draining": False,
    "booked_blocks": 40, "kv_usage": 0.5, "kv_blocks": 100, "conversations": 3, "prefilling": 1, "decoding": 2,
    "queued_tokens": 0, "reported_waiting": 1, "prompt_tokens": 100, "output_tokens": 20,
}  # fmt: skip


def fleet(**changes: Any) -> dict[str, Any]:
    return {
        "workers": [WORKER | changes],
        "away": [{"name": "d1", "error": "connection refused"}],
        "conversations": 3,
        "in_flight": 3,
        "waiting": 2,
        "waiting_tail": 1,
        "draining": False,
        "counters": {"opened": 3},
    }


def series(**buckets: float) -> dict[Any, float]:
    made: dict[Any, float] = {
        ("conserve_ttft_seconds_bucket", frozenset({("tier", "slow"), ("kind", "first"), ("le", le)})): count
        for le, count in buckets.items()
    }
    for met, turns in (("yes", 3.0), ("no", 1.0)):
        labels = frozenset({("tier", "slow"), ("met", met)})
        made["conserve_slo_turns_total", labels] = turns
        made["conserve_slo_output_tokens_total", labels] = turns * 10
    return made


@pytest.mark.parametrize(
    ("share", "buckets", "expected"),
    [
        (0.5, {0.1: 0, 0.2: 10, INF: 10}, 0.15),
        (1.0, {0.1: 0, 0.2: 10, INF: 10}, 0.2),
        (0.5, {0.1: 5, 0.2: 10, INF: 10}, 0.1),
        (0.95, {0.1: 5, INF: 10}, INF),
        (0.5, {0.1: 0, INF: 0}, None),
        (0.5, {}, None),
    ],
)
def test_quantiles_are_linear_inside_a_bucket(
    share: float, buckets: dict[float, float], expected: float | None
) -> None:
    assert quantile(share, buckets) == (None if expected is None else pytest.approx(expected))


def test_rates_are_between_two_looks() -> None:
    before = Look(100.0, fleet(), {}, series(**{"+Inf": 4}))
    now = Look(102.0, fleet(output_tokens=60), {}, series(**{"+Inf": 4}))
    (row,) = view(now, before=before).workers
    assert row.tokens_per_s == 20.0, "40 tokens in 2 s"
    assert (row.kv_booked, row.kv_reported, row.kv_blocks, row.running) == (40, 50, 100, 3)
    restarted = Look(102.0, fleet(id=7), {}, {})
    assert view(restarted, before=before).workers[0].tokens_per_s is None


def test_times_may_be_of_a_window_only() -> None:
    early = Look(0.0, fleet(), {}, series(**{"0.1": 10, "0.2": 10, "+Inf": 10}))
    now = Look(60.0, fleet(), {}, series(**{"0.1": 10, "0.2": 20, "+Inf": 20}))
    (tier,) = view(now).tiers
    assert tier.ttft_p50_s == pytest.approx(0.1)
    (tier,) = view(now, times_since=early).tiers
    assert tier.ttft_p50_s == pytest.approx(0.15), "the first ten are older"


def test_a_gpu_that_two_workers_share_is_shown_in_parts() -> None:
    energy = {
        "zones": {"gpu0": {"workers": ["p0", "d0"], "power_w": 200.0}},
        "workers": {"d0": {"j_per_token": 0.5}},
        "tiers": {"slow": {"j_per_token": 0.25}},
        "fleet": {"j_per_output_token": 2.0},
        "no_counter": {"cpu": "no RAPL", "gpu1": "there is no GPU 1", "gpu2": "there is no GPU 1"},
    }
    shown = view(Look(0.0, fleet(), energy, series(**{"+Inf": 4})))
    assert (shown.workers[0].power_w, shown.workers[0].j_per_token, shown.power_w) == (100.0, 0.5, 200.0)
    assert (shown.tiers[0].good_turns, shown.tiers[0].j_per_token) == (0.75, 0.25)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(tables("http://r", shown, width=200, trouble="http://r cannot be reached"))
    text = captured.get()
    for words in (
        "in line: 2 new, 1 later turns", "200 W", "2 J for each output token", "away: d1: connection refused",
        "no energy counter (gpu1, gpu2): there is no GPU 1", "cannot be reached; what is shown is old",
    ):  # fmt: skip
        assert words in text, text


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_narrow_terminal_shows_every_number_in_further_tables(width: int) -> None:
    shown = view(Look(0.0, fleet(), {}, series(**{"0.1": 3, "+Inf": 4})))
    console = Console(width=width)
    with console.capture() as captured:
        console.print(tables("http://r", shown, width=width))
    lines = [line.strip() for line in captured.get().splitlines()]
    titles = [line.split() for line in lines if line.startswith(("worker ", "tier "))]
    words = [word for title in titles for word in title]
    for word in ("booked", "reported", "blocks", "pins", "queue", "tok/s", "J/tok", "TTFET", "goodput"):
        assert word in words, f"{word} is cut at {width} columns"
    assert not any("…" in line for line in lines), lines
    assert len(titles) == 2 or width < 160


def test_where_nothing_listens_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 is "discard", which no machine of today serves.
    assert main(["top", "http://127.0.0.1:9", "--once"]) == 1
    assert "conserve top: http://127.0.0.1:9 cannot be reached" in capsys.readouterr().err


def test_what_is_no_url_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "localhost:8080", "--once"]) == 1
    assert "write http://host:port" in capsys.readouterr().err
