"""`conserve bench live` on real engines: each policy gets the same work, KV goes where its roles say, and steps can be measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vllm.servers import BLOCK_SIZE, Forge

BENCH = (sys.executable, "-P", "-m", "conserve.cli", "bench", "live")
SMALL = (
    *("--conversations", "2", "--rate", "4", "--rounds", "1"),
    *("--scale", "0.03", "--gap-scale", "0.01", "--max-turns", "2"),
)
TURNS = 4


def bench(forge: Forge, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command over the forge's servers, in a terminal too wide to break a line."""
    return subprocess.run(
        [*BENCH, *SMALL, *words, "--log-dir", str(folder / "logs")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_policies_get_the_same_work_on_real_engines(forge: Forge, tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    policies = ("strict", "collocated", "disaggregated")
    ended = bench(
        forge,
        tmp_path,
        *("--prefiller", forge["p0"].url, "--decoder", forge["d0"].url),
        *("--policies", ",".join(policies), "--calibrate", "--json", str(path)),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told: dict[str, Any] = json.loads(path.read_text())
    rounds = told["rounds"]
    assert [one["policy"] for one in rounds] == list(policies)
    assert [each["failure"] for one in rounds for each in one["conversations"]] == [None] * 6
    lengths = ("prompt_tokens", "output_tokens", "arrival_s")
    work = [[[each[key] for key in lengths] for each in one["conversations"]] for one in rounds]
    assert work == [work[0]] * 3, "the same work at the same times"
    assert [one["figures"]["handoffs"] for one in rounds] == [1, 0, 2], "once, never, for each turn"
    due = sum(tokens[0] for tokens, _, _ in work[0])
    for one in rounds:
        computed = one["counted"]["computed_tokens"]
        assert computed >= due, "nothing of another run was of use"
        # What is not in a whole block is computed again by the next turn.
        assert computed <= sum(tokens[-1] for tokens, _, _ in work[0]) + TURNS * BLOCK_SIZE, (
            "histories are kept"
        )
    for simulated in told["simulated"]:
        assert [one["handoffs"] for one in simulated["policies"]] == [1, 0, 2]
        measured = simulated["measured"]
        [steps] = measured["steps"]
        assert steps["workers"] == ["p0", "d0"]
        assert all(value > 0 for row in (*steps["prefill_s"], *steps["decode_s"]) for value in row)
        assert measured["handoff_latency_s"] > 0
        assert measured["block_size"] == BLOCK_SIZE


def test_engines_that_cannot_hand_over_are_not_compared_as_if_they_did(forge: Forge, tmp_path: Path) -> None:
    for giver, taker, why in (
        ("plain", "d0", "p0 at .* keeps no KV for others"),
        ("p0", "plain", "d0 at .* computed what p0 had handed over to it"),
    ):
        ended = bench(
            forge,
            tmp_path,
            *("--prefiller", forge[giver].url, "--decoder", forge[taker].url, "--policies", "strict"),
        )
        assert ended.returncode == 1, ended.stdout + ended.stderr
        assert re.search(why, ended.stderr), ended.stderr
        assert "--kv-transfer-config" in ended.stderr
