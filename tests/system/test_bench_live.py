"""`conserve bench live` from end to end: real engines, a door for each policy, and figures that add up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCH = (sys.executable, "-P", "-m", "conserve.cli", "bench", "live")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_policies_get_the_same_work_on_the_same_engines(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    words = [
        "--workers",
        "tiny:1p1d",
        "--policies",
        "strict,collocated,follow-kv,follow-kv@both",
        "--conversations",
        "3",
        "--rate",
        "4",
    ]
    words += ["--rounds", "1", "--scale", "0.02", "--gap-scale", "0.01", "--max-turns", "3", "--calibrate"]
    ended = subprocess.run(
        [*BENCH, *words, "--log-dir", str(tmp_path / "logs"), "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told: dict[str, Any] = json.loads(path.read_text())
    strict, collocated, split, alike = told["rounds"]
    for one in (strict, collocated, split, alike):
        assert [each["failure"] for each in one["conversations"]] == [None] * 3
        assert all(len(each["ttft_s"]) == len(each["prompt_tokens"]) <= 3 for each in one["conversations"])
        assert one["figures"]["computed_ratio"] >= 1, "nothing of another run was of use"
        assert one["figures"]["computed_ratio"] < 1.5, "histories are kept"
    lengths = ("prompt_tokens", "output_tokens")
    work = [[[each[key] for key in lengths] for each in one["conversations"]] for one in told["rounds"]]
    assert work == [work[0]] * 4, "the same work"
    assert [one["figures"]["handoffs"] for one in told["rounds"]] == [1, 0, 1, 0], "as the roles say"
    assert told["roles"]["follow-kv"] == ["prefiller", "decoder"]
    assert told["roles"]["follow-kv@both"] == told["roles"]["collocated"] == ["both", "both"]
    assert "tokens/J: no energy counter" in ended.stdout or strict["figures"]["tokens_per_j"] is not None
    for simulated in told["simulated"]:
        assert [one["handoffs"] for one in simulated["policies"]] == [1, 0, 1, 0]
        assert {order["metric"] for order in simulated["orders"]} == {
            "ttfet_p95_s",
            "ttft_p95_s",
            "tbt_last_p95_s",
        }
        assert simulated["measured"]["handoff_latency_s"] > 0
        [steps] = simulated["measured"]["steps"]
        assert steps["workers"] == ["w0", "w1"], "tiny engines are alike"
        assert all(value > 0 for row in steps["prefill_s"] for value in row)


def kill_a_worker(bench: int) -> None:
    """One of the processes that it started and that is an engine."""
    children = Path(f"/proc/{bench}/task/{bench}/children").read_text().split()
    engines = [
        pid for pid in children if b"conserve_workers.tiny" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(int(engines[-1]), signal.SIGKILL)


def interrupt(bench: int) -> None:
    """Ctrl-C."""
    os.kill(bench, signal.SIGINT)


def terminate(bench: int) -> None:
    """As `timeout` does."""
    os.kill(bench, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("mishap", "status", "said"),
    [
        (kill_a_worker, 1, "w1 ended with status -9 in the middle"),
        (interrupt, 130, "interrupted"),
        (terminate, 130, "interrupted"),
    ],
)
@pytest.mark.timeout(300)
def test_what_every_policy_had_is_kept_when_it_ends_early(
    tmp_path: Path, mishap: Callable[[int], None], status: int, said: str
) -> None:
    path = tmp_path / "live.json"
    words = [
        "--workers",
        "tiny:1p1d",
        "--policies",
        "strict,collocated",
        "--conversations",
        "2",
        "--rate",
        "4",
    ]
    words += ["--rounds", "20", "--scale", "0.02", "--gap-scale", "0.01", "--max-turns", "2"]
    with subprocess.Popen(
        [*BENCH, *words, "--log-dir", str(tmp_path / "logs"), "--json", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stderr is not None
        assert bench.stdout is not None
        for line in bench.stderr:
            if line.startswith("round 2 of 20"):
                mishap(bench.pid)
                break
        rest, table = bench.stderr.read(), bench.stdout.read()
    assert bench.returncode == status, rest
    assert said in rest
    assert "what every policy had follows: 1 round of 20" in rest
    assert ", 1 round from seed " in " ".join(table.split()), table
    told = json.loads(path.read_text())
    assert said in told["stopped"]
    assert [(one["policy"], one["round"]) for one in told["rounds"]][:2] == [("strict", 0), ("collocated", 0)]
    assert [one["policy"] for one in told["policies"]] == ["strict", "collocated"]


def test_options_that_contradict_are_refused(tmp_path: Path) -> None:
    for words in (
        ["--workers", "tiny:1p1d", "--both", "http://127.0.0.1:1"],
        ["--both", "http://127.0.0.1:1", "--policies", "strict"],
        ["--policies", "best"],
        ["--json", str(tmp_path / "no" / "such.json")],
    ):
        ended = subprocess.run([*BENCH, *words], capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2, ended.stderr
        assert ended.stderr.startswith("conserve bench live: ")


def test_engines_that_are_not_there_are_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*BENCH, "--both", "http://127.0.0.1:1", "--policies", "collocated", "--log-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "127.0.0.1:1" in ended.stderr
