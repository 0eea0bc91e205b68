"""`conserve bench live` from end to end: real engines, a door for each policy, and figures that add up."""

from __future__ import annotations

import json
import subprocess
import sys
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
        assert all(value > 0 for row in simulated["measured"]["prefill_s"] for value in row)


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
