"""What is known of engines before they are asked: who may hand over to whom, which are alike, how much a step takes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from conserve import ConfigError
from conserve.live.engines import Engines, from_file, from_urls, tiny
from conserve.live.handoff import pairs

FILE = """
model = "m"
block_size = 32
first_port = 0
first_handoff_port = 0
[[tier]]
role = "prefiller"
preset = "h100"
gpus = [0]
power_limit_w = 300
[[tier]]
role = "decoder"
count = 2
preset = "a40"
gpus = [1, 2]
flags = ["--max-num-batched-tokens=512", "--max-num-seqs", "64"]
[[tier]]
role = "decoder"
preset = "a40"
gpus = [3]
flags = ["--max-num-batched-tokens=512", "--max-num-seqs", "64"]
[router]
port = 1
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Engines:
    file = tmp_path / "fleet.toml"
    file.write_text(FILE)
    return from_file(file)


def named(engines: Engines, *policies: str) -> list[str]:
    return [f"{pair.giver.name}-{pair.taker.name}" for pair in pairs(engines, policies)]


def test_pairs_are_those_that_the_policies_use() -> None:
    split = from_urls(["http://p0:1"], ["http://d0:1", "http://d1:1"], [], connector="nixl")
    assert named(split, "collocated") == []
    assert named(split, "strict", "collocated") == ["p0-d0", "p0-d1"]
    assert len(named(split, "strict", "disaggregated@both")) == 6, "any to any, each once"
    assert named(from_urls(["http://p0:1"], ["http://d0:1"], [], connector="none"), "strict") == []


def test_engines_without_a_connector_may_be_compared_where_nothing_is_handed_over() -> None:
    alike = from_urls([], [], ["http://w0:1", "http://w1:1"], connector="nixl")
    assert named(alike, "follow-kv", "strict@both", "collocated") == []
    assert named(alike, "follow-kv(handoff=always)") == ["w0-w1", "w1-w0"]


def test_tiers_with_the_same_settings_are_one_kind(mixed: Engines) -> None:
    kinds = [worker.kind for worker in mixed.workers]
    assert kinds[1] == kinds[2] == kinds[3] != kinds[0]
    assert len({worker.kind for worker in tiny("tiny:1p2d").workers}) == 1


def test_running_workers_are_of_one_kind_unless_their_tiers_differ() -> None:
    alike = from_urls(["http://p0:1"], ["http://d0:1"], [], connector="nixl")
    assert len({worker.kind for worker in alike.workers}) == 1
    tiers = from_urls(["http://p0:1,tier=h100"], ["http://d0:1,tier=a40"], [], connector="nixl")
    assert [worker.kind for worker in tiers.workers] == ["h100", "a40"]


def test_the_budget_of_a_step_is_the_one_that_an_engine_is_started_with(mixed: Engines) -> None:
    # An engine that does both is bounded like a decoder: the preset's 2048 of an h100.
    assert [worker.chunk_tokens for worker in mixed.workers] == [2048, 512, 512, 512]
    assert tiny("tiny:1p1d").workers[0].chunk_tokens == 256


def test_what_only_up_does_is_said(mixed: Engines) -> None:
    assert [warning.partition(":")[0] for warning in mixed.warnings] == ["tier prefiller0"]
    assert "power_limit_w" in mixed.warnings[0]


def test_a_port_that_somebody_has_is_refused_before_anything_is_measured_on_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = tmp_path / "fleet.toml"
        file.write_text(
            f'model = "m"\nconnector = "none"\nfirst_port = {port}\n[[tier]]\nrole = "both"\nengine = "tiny"\n'
        )
        engines = from_file(file)
        with pytest.raises(ConfigError, match=str(port)):
            engines.must_be_free()
