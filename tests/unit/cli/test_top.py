"""What `conserve top` makes of a router's numbers, and what it says where there is no router."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conserve.cli import main
from conserve.cli._fit import console
from conserve.cli._top_look import Look, View, quantile, view
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
        (0.5, {0.1: 0, 0.2: 10, INF: 10}, (0.1, 0.2)),
        (0.5, {0.1: 5, 0.2: 10, INF: 10}, (0.0, 0.1)),
        (0.51, {0.1: 5, 0.2: 10, INF: 10}, (0.1, 0.2)),
        (0.95, {0.1: 5, INF: 10}, (0.1, INF)),
        (0.5, {0.1: 0, INF: 0}, None),
        (0.5, {}, None),
    ],
)
def test_a_quantile_lies_between_the_bounds_of_its_bucket(
    share: float, buckets: dict[float, float], expected: tuple[float, float] | None
) -> None:
    assert quantile(share, buckets) == expected


@pytest.mark.parametrize(
    ("share", "buckets", "sum_s", "expected"),
    [
        (0.95, {2.5: 0, 5.0: 1, INF: 1}, 2.6, (2.6, 2.6)),
        # Two of at most 0.1 s leave 2.8 s of the third.
        (0.95, {0.1: 2, 2.5: 2, 5.0: 3, INF: 3}, 3.0, (2.8, 3.0)),
        # Six are no shorter than the fifth of ten, the first four no shorter than 0.1 s.
        (0.5, {0.1: 0, 0.2: 10, INF: 10}, 1.1, (0.1, 0.7 / 6)),
        # Five are no longer than the fifth, the others at most 0.2 s.
        (0.5, {0.1: 0, 0.2: 10, INF: 10}, 1.9, (0.18, 0.2)),
        (0.5, {0.1: 0, 0.2: 10, INF: 10}, 0.0, (0.1, 0.1)),
        (0.95, {600.0: 1, INF: 2}, 900.0, (600.0, 900.0)),
    ],
)
def test_what_the_samples_are_together_tells_more(
    share: float, buckets: dict[float, float], sum_s: float, expected: tuple[float, float]
) -> None:
    assert quantile(share, buckets, sum_s) == pytest.approx(expected)


@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 2.5, 4.0, 7.0]), min_size=1), st.sampled_from([0.5, 0.95])
)
def test_no_sample_is_outside_of_what_is_told(samples: list[float], share: float) -> None:
    buckets = {bound: float(sum(each <= bound for each in samples)) for bound in (1.0, 2.0, 5.0, INF)}
    told = quantile(share, buckets, sum(samples))
    wanted = sorted(samples)[math.ceil(share * len(samples)) - 1]
    assert told is not None
    assert told[0] - 1e-9 <= wanted <= told[1] + 1e-9


def test_seven_turns_of_which_one_waited_are_no_49_5_s() -> None:
    told = series(**{"5": 6, "30": 6, "60": 7, "+Inf": 7})
    lines = screen(view(Look(3.0, fleet(), {}, told)))
    assert any("30-60 s" in line for line in lines), lines
    assert any("since the router's start" in line for line in lines)


def test_turns_that_never_waited_waited_0_ms() -> None:
    told = series(**{"0.005": 3, "+Inf": 3})
    told["conserve_ttft_seconds_sum", frozenset({("tier", "slow"), ("kind", "first")})] = 0.0
    assert any("  0 ms " in f"{line} " for line in screen(view(Look(3.0, fleet(), {}, told))))


def test_a_young_routers_times_are_no_longer_than_what_it_summed_up() -> None:
    told = series(**{"2.5": 0, "5": 1, "+Inf": 1})
    told["conserve_ttft_seconds_sum", frozenset({("tier", "slow"), ("kind", "first")})] = 2.6
    (tier,) = view(Look(3.0, fleet(), {}, told)).tiers
    assert tier.ttft_p95_s == pytest.approx((2.6, 2.6))


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
    assert tier.ttft_p50_s == (0.0, 0.1)
    (tier,) = view(now, times_since=early).tiers
    assert tier.ttft_p50_s == (0.1, 0.2), "the first ten are older"


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
        "in line: 2 new, 1 later", "200 W", "2 J for each output token", "away: d1: connection refused",
        "no energy counter (gpu1, gpu2): there is no GPU 1", "cannot be reached; what is shown is old",
    ):  # fmt: skip
        assert words in text, text


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_narrow_terminal_shows_every_number_in_further_tables(width: int) -> None:
    energy = {
        "zones": {"gpu0": {"workers": ["d0"], "power_w": 200.0}},
        "workers": {"d0": {"j_per_token": 0.5}},
        "tiers": {"slow": {"j_per_token": 0.25}},
    }
    told = series(**{"0.1": 3, "+Inf": 4})
    for (name, labels), count in list(told.items()):
        if name == "conserve_ttft_seconds_bucket":
            told["conserve_ttfet_seconds_bucket", labels] = count
    shown = view(Look(2.0, fleet(), energy, told), before=Look(0.0, fleet(), {}, {}))
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


def test_a_pipe_is_as_wide_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert console(piped_columns=200).width == 80
    monkeypatch.delenv("COLUMNS")
    assert console(piped_columns=200).width == 200


def screen(shown: View, **options: Any) -> list[str]:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(tables("http://127.0.0.1:8080", shown, width=80, **options))
    return captured.get().splitlines()


def many(count: int) -> View:
    wide = fleet()
    wide["workers"] = [WORKER | {"id": place, "name": f"d{place}"} for place in range(count)]
    why = {"no_counter": {"cpu": "no RAPL", "gpu0": "there is no NVML"}}
    return view(Look(0.0, wide, why, series(**{"0.1": 3, "+Inf": 4})))


def test_three_workers_fit_a_terminal_of_80_by_24() -> None:
    lines = screen(many(3), height=23)
    assert len(lines) <= 23
    assert not any("more lines" in line for line in lines)
    assert any("times and good turns" in line for line in lines)


def test_what_does_not_fit_is_counted_and_trouble_is_seen_all_the_same() -> None:
    whole = screen(many(40), trouble="the router is gone")
    lines = screen(many(40), height=23, trouble="the router is gone")
    assert len(lines) == 23
    assert "the router is gone; what is shown is old" in lines[1]
    left_out = int(lines[-1].split()[0])
    assert 22 + left_out == len(whole) - 2, "all but the two lines about counters"
    assert lines[:22] == whole[:22]


def test_a_column_of_which_nothing_is_known_is_left_out() -> None:
    text = "\n".join(screen(many(1)))
    assert "J/tok" not in text
    assert "no energy counter (gpu0): there is no NVML" in text


class Router(BaseHTTPRequestHandler):
    """A router that tells the same again and again."""

    def do_GET(self) -> None:
        pages: dict[str, object] = {"/v1/fleet": fleet(), "/v1/energy": {}, "/metrics": None}
        self.send_response(200)
        self.end_headers()
        told = pages[self.path]
        self.wfile.write(b"" if told is None else json.dumps(told).encode())

    def log_message(self, *_: object) -> None:
        """The test's output is not its place."""


@pytest.fixture
def router() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_pipe_gets_each_look_when_it_is_taken_and_may_be_closed(router: str) -> None:
    command = [sys.executable, "-m", "conserve.cli", "top", router, "--interval-s", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        heads: list[str] = []
        while len(heads) < 3:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            assert line.rstrip("\n") == line.rstrip(), "no line ends in spaces"
            if "3 conversations" in line:
                heads.append(line)
        assert all(re.match(rf"\d\d:\d\d:\d\d {router} ", head) for head in heads), heads
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_without_workers_there_is_no_empty_table() -> None:
    nobody = fleet() | {"workers": []}
    lines = screen(view(Look(0.0, nobody, {}, series(**{"+Inf": 4}))))
    assert "no worker has joined" in lines
    assert not [line for line in lines if line.startswith("worker ")]
    assert "away: d1: connection refused" in lines


def test_where_nothing_listens_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 is "discard", which no machine of today serves.
    assert main(["top", "http://127.0.0.1:9", "--once"]) == 1
    assert "conserve top: http://127.0.0.1:9 cannot be reached" in capsys.readouterr().err


def test_what_is_no_url_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "localhost:8080", "--once"]) == 1
    assert "write http://host:port" in capsys.readouterr().err
