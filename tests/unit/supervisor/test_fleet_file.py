"""A fleet file is read whole or refused with the key and what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conserve.errors import ConfigError
from conserve.supervisor.fleet_file import PRESETS, FleetFile
from conserve_workers.vllm import presets

GOOD = """
model = "m"
block_size = 32
[[tier]]
role = "prefiller"
preset = "h100"
gpus = [0, 1]
[[tier]]
role = "decoder"
count = 2
preset = "a40"
gpus = [2, 3, 4, 5]
flags = ["--max-num-seqs", "64"]
env = { NCCL_DEBUG = "WARN" }
[router]
port = 9000
low_watermark = 0.7
"""


def test_a_whole_file_is_read() -> None:
    fleet = FleetFile.parse(GOOD)
    prefill, decode = fleet.tiers
    assert (fleet.model, fleet.block_size, fleet.connector) == ("m", 32, "nixl")
    assert (prefill.role, prefill.count, prefill.ranks, prefill.gpus_of(0)) == ("prefiller", 1, 2, (0, 1))
    assert [decode.gpus_of(place) for place in range(2)] == [(2, 3), (4, 5)]
    assert decode.env == {"NCCL_DEBUG": "WARN"}
    assert fleet.router == {"port": 9000, "low_watermark": 0.7}


def test_the_example_with_tiers_and_a_power_limit_is_read() -> None:
    example = Path(__file__).parents[3] / "workers" / "vllm" / "tiers.toml"
    fleet = FleetFile.read(example)
    assert [(tier.name, tier.power_limit_w) for tier in fleet.tiers] == [
        ("prefill-h100", None),
        ("decode-a40", 200),
    ]


TIER = '[[tier]]\nrole = "decoder"\n'


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("model = ", "", "is not TOML"),
        ("model = " + "[" * 5_000 + "]" * 5_000, "", "is nested too deep"),
        ('model = "m\\u0000"\n' + TIER, "model", "a string"),
        (f'model = "m"\ngrace_s = 1{"0" * 400}\n' + TIER, "grace_s", "up to 86400"),
        ('model = "m"\n' + TIER + 'env = { "A=B" = "x" }', "tier[0].env", "environment variables"),
        ('model = "m"\n' + TIER + 'env = { A = "x\\u0000" }', "tier[0].env.A", "a string"),
        ('model = "m"\n' + TIER + 'flags = ["--a\\u0000"]', "tier[0].flags", "a list of strings"),
        ('model = "m"\n' + TIER + 'flags = ["--block_size=32"]', "tier[0].flags", "set with 'block_size'"),
        ('model = "m"\n' + TIER + 'flags = ["--max-model=32"]', "tier[0].flags", "set with 'max_model_len'"),
        (
            'model = "m"\n' + TIER + 'flags = ["--kv-transfer-config.kv_role", "kv_both"]',
            "tier[0].flags",
            "set with 'connector'",
        ),
        (
            'model = "m"\n[connector.my]\nprefill = { a = 1979-05-27 }\n' + TIER,
            "connector.my",
            "what JSON has",
        ),
        (
            'model = "m"\n[connector.my]\nprefill = { a = 1 }\nretain = { a = nan }\n' + TIER,
            "connector.my",
            "what JSON has",
        ),
        (TIER, "model", "a model's name or folder"),
        ('model = "m"', "tier", "at least one"),
        ('model = ""\n' + TIER, "model", "a string"),
        ('model = "m"\n[[tier]]', "tier[0].role", "one of prefiller, decoder, both"),
        ('model = "m"\n[[tier]]\nrole = "prefiller"', "tier", 'role = "decoder"'),
        ('model = "m"\nmodle = "n"\n' + TIER, "modle", "there is no such key; known: tier, model"),
        ('model = "m"\n' + TIER + 'modle = "n"', "tier[0].modle", "; did you mean model?"),
        ('model = "m"\nconnector = "lmcache"\n' + TIER, "connector", "one of nixl, mooncake, example, none"),
        ('model = "m"\nconnector = "example"\n' + TIER, "handoff_folder", "a folder that every worker sees"),
        ('model = "m"\n[connector.nixl]\n' + TIER, "connector.nixl", "a new name"),
        ('model = "m"\n[connector.a]\n[connector.b]\n' + TIER, "connector", "or one table"),
        ('model = "m"\n[connector.my]\n' + TIER, "connector.my.prefill", "what asks for KV"),
        ('model = "m"\n[connector.my]\ndecode = "guess"\n' + TIER, "connector.my.decode", "answer, nothing"),
        (
            'model = "m"\n[connector.my]\nprefil = {}\ndecode = "nothing"\n' + TIER,
            "connector.my.prefil",
            "there is no such key; known: prefill, decode, flags, retain, env",
        ),
        (
            'model = "m"\n[connector.my]\ndecode = "nothing"\nflags = { decodr = ["-x"] }\n' + TIER,
            "connector.my.flags.decodr",
            "known: prefiller, decoder, both",
        ),
        (
            'model = "m"\n[connector.my]\ndecode = "nothing"\nflags = { decoder = ["--a=1"] }\n'
            + TIER
            + 'flags = ["--a", "2"]',
            "tier[0].flags",
            "--a is set by connector.my.flags already",
        ),
        ('model = "m"\nretention = "keep"\n' + TIER, "retention", "one of cache, pin"),
        ('model = "m"\nhost = "bad host"\n' + TIER, "host", "an IP address or a host's name, not 'bad host'"),
        (
            'model = "m"\nretention_ttl_s = 60\n' + TIER,
            "retention_ttl_s",
            'nothing without retention = "pin"',
        ),
        ('model = "m"\nretention_ttl_s = 0\n' + TIER, "retention_ttl_s", "from 1 to 86400, not 0"),
        (
            'model = "m"\nretention = "pin"\nconnector = "none"\n' + TIER,
            "retention",
            "'none' cannot keep blocks",
        ),
        ('model = "m"\nretention = "pin"\n' + TIER + 'engine = "tiny"', "retention", 'takes "cache"'),
        (
            'model = "m"\nretention = "pin"\n[connector.my]\ndecode = "nothing"\n' + TIER,
            "connector.my.retain",
            "makes the engine keep a turn",
        ),
        ('model = "m"\nfirst_port = 70000\n' + TIER, "first_port", "from 0 to 65535, not 70000"),
        ('model = "m"\nblock_size = true\n' + TIER, "block_size", "a whole number from 1"),
        ('model = "m"\n' + TIER + "count = 0", "tier[0].count", "from 1 to 1024, not 0"),
        ('model = "m"\n' + TIER + "power_limit_w = 200", "tier[0].power_limit_w", "nothing without gpus"),
        (
            'model = "m"\n' + TIER + 'preset = "a40"\ngpus = [0]\npower_limit_w = 200.5',
            "tier[0].power_limit_w",
            "a whole number from 1 to 10000, not 200.5",
        ),
        ('model = "m"\n' + TIER + 'name = "a,b"', "tier[0].name", "letters, digits"),
        ('model = "m"\n' + TIER + 'preset = "b200"', "tier[0].preset", "one of cpu, a40"),
        ('model = "m"\n' + TIER + 'preset = "a40"', "tier[0].gpus", "a list of GPU indices"),
        ('model = "m"\n' + TIER + "gpus = [0]", "tier[0].gpus", "name the GPU's: a40, l40s"),
        ('model = "m"\n' + TIER + 'preset = "a40"\ngpus = [0, 0]', "tier[0].gpus", "each GPU once"),
        (
            'model = "m"\n' + TIER + 'preset = "a40"\ngpus = [0, 1, 2]\ncount = 2',
            "tier[0].gpus",
            "multiple of count",
        ),
        (
            'model = "m"\n'
            + (TIER + 'preset = "a40"\ngpus = [1, 2]\n')
            + (TIER + 'preset = "a40"\ngpus = [2]\nname = "x"'),
            "tier[1].gpus",
            "GPU 2 belongs to tier 'decoder0' already",
        ),
        ('model = "m"\n' + TIER + 'model = "n"', "tier[0].model", "'m' as in the top of the file"),
        (TIER + 'model = "m"\n' + TIER + 'model = "n"', "tier[1].model", "'m' as in tier[0]"),
        (
            'model = "m"\n' + TIER + "block_size = 16\n" + TIER + "block_size = 32",
            "tier[1].block_size",
            "must agree",
        ),
        ('model = "m"\n' + TIER + 'flags = ["--port=1"]', "tier[0].flags", "set with 'first_port'"),
        ('model = "m"\n' + TIER + "kv_blocks = 64", "tier[0].kv_blocks", "give kv_cache_bytes"),
        (
            'model = "m"\n' + TIER + 'engine = "tiny"\nkv_cache_bytes = 2000000',
            "tier[0].kv_cache_bytes",
            "give kv_blocks",
        ),
        ('model = "m"\n' + TIER + "env = { A = 1 }", "tier[0].env.A", "a string"),
        (
            'model = "m"\n' + TIER + TIER + 'engine = "tiny"',
            "tier.engine",
            "cannot hand KV to each other",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FleetFile.parse(text)
    assert caught.value.key == key
    assert said in str(caught.value)
    assert key in str(caught.value)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fleet\.toml: No such file"):
        FleetFile.read(tmp_path / "fleet.toml")


def test_presets_are_those_of_the_engine() -> None:
    assert set(PRESETS) == set(presets.PRESETS), (
        "the router's program does not import the engine's; this holds them together"
    )
