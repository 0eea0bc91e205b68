"""Each way of handing KV over, from a fleet file to a real engine: the decoder takes the prompt's KV and computes none of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conserve.supervisor.fleet_file import FleetFile
from conserve.supervisor.launch import plan
from tests.vllm.door import Door, router
from tests.vllm.servers import (
    BLOCK_SIZE,
    MODEL,
    NAME,
    PYTHON,
    Forge,
    Wanted,
    alone,
    completion,
    mooncake_env,
    token_ids,
)

FETCHED = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"
# One more than whole blocks: a connector that hands over whole blocks leaves one token.
PROMPT_TOKENS = 10 * BLOCK_SIZE + 1
FLEET = """
model = "{model}"
served_model_name = "{name}"
block_size = {block_size}
max_model_len = 1024
first_port = 0
first_handoff_port = 0
{connector}
[[tier]]
role = "prefiller"
kv_cache_bytes = 33_554_432
flags = ["--max-num-seqs", "4", "--generation-config", "vllm"]
[[tier]]
role = "decoder"
kv_cache_bytes = 33_554_432
flags = ["--max-num-seqs", "4", "--generation-config", "vllm"]
[router]
port = 0
probe_interval_s = 0.2
probe_timeout_s = 20
{declared}
"""
# What `connector = "nixl"` and `retention = "pin"` stand for, as a user would declare it.
DECLARED = """
[connector.my]
prefill = { do_remote_decode = true, do_remote_prefill = false }
retain = { do_remote_decode = true, do_remote_prefill = false }
env = { VLLM_NIXL_SIDE_CHANNEL_HOST = "{host}", VLLM_NIXL_SIDE_CHANNEL_PORT = "{handoff_port}" }
[connector.my.flags]
prefiller = ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_buffer_device":"cpu","kv_connector_extra_config":{"num_threads":0}}']
decoder = ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_buffer_device":"cpu","kv_load_failure_policy":"fail","kv_connector_extra_config":{"num_threads":0,"bidirectional_kv_xfer":true,"decoder_kv_blocks_ttl":120,"kv_lease_duration":120}}']
"""


def why_no_mooncake() -> str:
    """Why Mooncake's transfer engine cannot be loaded where vLLM is; empty if it can."""
    if not PYTHON:
        return ""  # Nothing here runs then, and `conftest.py` says why.
    asked = [PYTHON, "-c", "from mooncake.engine import TransferEngine"]
    environment = {**os.environ, **mooncake_env()}
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False, env=environment)
    return done.stderr.strip().rpartition("\n")[2]


NO_MOONCAKE = why_no_mooncake()


@contextmanager
def fleet(forge: Forge, folder: Path, connector: str, declared: str = "") -> Iterator[Door]:
    """The processes that `conserve up` would start for a file, the workers forked."""
    text = FLEET.format(model=MODEL, name=NAME, block_size=BLOCK_SIZE, connector=connector, declared=declared)
    planned = plan(FleetFile.parse(text))
    names = {each.spec.name: f"{each.spec.name}-{folder.name}" for each in planned.workers}
    forge.launch(
        {
            names[each.spec.name]: Wanted(each.spec.argv, each.spec.env, each.url, NAME)
            for each in planned.workers
        }
    )
    try:
        with router(planned.router.argv, planned.router.env, folder / "router.log") as door:
            door.until(set(names))
            yield door
    finally:
        for name in names.values():
            forge.kill(name)


def rises(
    forge: Forge, decoder: str, door: Door, prompt: list[int], conversation: str = "task-1"
) -> tuple[float, float, dict[str, str]]:
    """Serve a first turn; by how much its decoder's fetched and computed tokens rose, and the answer's headers."""
    before = forge[decoder].metrics()
    turn = door.turn(completion(prompt), conversation)
    after = forge[decoder].metrics()
    assert turn.token_ids == alone(forge, prompt), "the text of one plain instance"
    door.assert_balanced()
    return (after[FETCHED] - before[FETCHED], after[COMPUTED] - before[COMPUTED], dict(turn.headers))


def test_nixl_as_a_connector_of_ones_own(forge: Forge, tmp_path: Path) -> None:
    pin = 'retention = "pin"\nretention_ttl_s = 120'
    with fleet(forge, tmp_path, pin, DECLARED) as door:
        decoder, prompt = f"d0-{tmp_path.name}", token_ids(201, PROMPT_TOKENS)
        fetched, computed, headers = rises(forge, decoder, door, prompt)
        assert (fetched, computed) == (PROMPT_TOKENS, 0)
        assert headers["x-conserve-prefiller"] == "p0"
        kept = forge[decoder].metrics()["vllm:kv_cache_usage_perc"] * door.row("d0")["kv_blocks"]
        assert round(kept) == door.row("d0")["booked_blocks"] == 11, "321 + 16 tokens"
        fetched, computed, headers = rises(forge, decoder, door, [*prompt, *token_ids(206, 3 * BLOCK_SIZE)])
        assert (fetched, computed) == (0, 3 * BLOCK_SIZE + 1)
        assert "x-conserve-prefiller" not in headers
        kept = forge[decoder].metrics()["vllm:kv_cache_usage_perc"] * door.row("d0")["kv_blocks"]
        # 417 + 16 tokens, and the block of turn 1 that was not full.
        assert round(kept) == door.row("d0")["booked_blocks"] == 14 + 1


def test_example_hands_whole_blocks_over_as_files(forge: Forge, tmp_path: Path) -> None:
    # It stores and finds a prompt of n tokens by its first (n - 1) // 32 * 32 and (n - 2) // 32 * 32 tokens.
    files = tmp_path / "kv"
    files.mkdir()
    blocks, rest = 9 * BLOCK_SIZE, 12
    with fleet(forge, tmp_path, f'connector = "example"\nhandoff_folder = "{files}"') as door:
        decoder = f"d0-{tmp_path.name}"
        fetched, computed, headers = rises(forge, decoder, door, token_ids(202, blocks + rest))
        assert (fetched, computed) == (blocks, rest), "whole blocks come as files, the rest is computed"
        assert headers["x-conserve-prefiller"] == "p0"
        assert list(files.glob("*/*.safetensors"))
        fetched, computed, headers = rises(forge, decoder, door, token_ids(205, blocks + 1), "task-2")
        assert (fetched, computed) == (0, blocks + 1), "of one token more than whole blocks it finds nothing"


@pytest.mark.skipif(
    bool(NO_MOONCAKE),
    reason=f"scripts/vllm-test could not install mooncake-transfer-engine-non-cuda: {NO_MOONCAKE}",
)
def test_mooncake_is_told_one_id_on_both_sides(forge: Forge, tmp_path: Path) -> None:
    with fleet(forge, tmp_path, 'connector = "mooncake"') as door:
        fetched, computed, headers = rises(forge, f"d0-{tmp_path.name}", door, token_ids(203, PROMPT_TOKENS))
        assert (fetched, computed) == (PROMPT_TOKENS, 0)
        assert headers["x-conserve-prefiller"] == "p0"


def test_none_computes_on_the_decoder(forge: Forge, tmp_path: Path) -> None:
    with fleet(forge, tmp_path, 'connector = "none"') as door:
        fetched, computed, headers = rises(forge, f"d0-{tmp_path.name}", door, token_ids(204, PROMPT_TOKENS))
        assert (fetched, computed) == (0, PROMPT_TOKENS)
        assert not re.search("prefiller", str(headers))
