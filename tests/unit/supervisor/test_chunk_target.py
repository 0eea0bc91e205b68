"""`tbt_target_ms` in a fleet file becomes vLLM's budget of a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conserve.errors import ConfigError
from conserve.supervisor.fleet_file import FleetFile
from conserve.supervisor.launch import plan
from conserve_workers.vllm.presets import PRESETS, StepTime

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "fleet.md"


def fleet(more: str, *, role: str = "decoder", preset: str = "h200", engine: str = "vllm") -> FleetFile:
    gpus = "gpus = [0]" if preset != "cpu" and "gpus" not in more else ""
    also = '[[tier]]\nname = "other"\nrole = "both"\n' if role == "prefiller" else ""
    return FleetFile.parse(
        f'model = "m"\nconnector = "none"\n[[tier]]\nrole = "{role}"\npreset = "{preset}"\n'
        f'engine = "{engine}"\n{gpus}\n{more}\n{also}'
    )


def budget(made: FleetFile) -> str:
    argv = plan(made).workers[0].spec.argv
    return argv[argv.index("--max-num-batched-tokens") + 1]


@pytest.mark.parametrize(
    ("target_ms", "tokens"),
    [(60, 1951), (14.2, 256), (14.3, 259), (7, 256), (5_000, 16_384)],
    ids=["(60 - 7.3) / 0.027", "255 are too few", "259", "below a decode step", "no more than a prefiller"],
)
def test_the_budget_is_what_the_target_leaves_after_a_decode_step(target_ms: float, tokens: int) -> None:
    assert budget(fleet(f"tbt_target_ms = {target_ms}")) == str(tokens)


def test_what_was_measured_takes_the_place_of_the_preset() -> None:
    assert budget(fleet("tbt_target_ms = 50\ndecode_step_ms = 10")) == "1481", "(50 - 10) / 0.027"
    assert budget(fleet("tbt_target_ms = 50\nprompt_ms_per_token = 0.1")) == "427", "(50 - 7.3) / 0.1"
    both = "tbt_target_ms = 50\ndecode_step_ms = 10\nprompt_ms_per_token = 0.05"
    assert budget(fleet(both, preset="cpu")) == "800"


def test_a_preset_that_says_nothing_of_its_device_bounds_the_budget_too() -> None:
    fast = "tbt_target_ms = 60000\ndecode_step_ms = 1\nprompt_ms_per_token = 0.001"
    assert budget(fleet(fast, preset="cpu")) == "16384"


@pytest.mark.parametrize(
    ("target_ms", "why"),
    [
        (7, "cannot be kept: a decode step alone takes 7.3 ms"),
        (14.2, "cannot be kept: with 256 tokens of a prompt, the fewest, a step takes 14.21 ms"),
        (14.3, None),
    ],
)
def test_a_target_that_no_chunk_keeps_is_warned_of_once(target_ms: float, why: str | None) -> None:
    warnings = plan(fleet(f"tbt_target_ms = {target_ms}\ncount = 2\ngpus = [0, 1]")).warnings
    assert warnings == (() if why is None else (f"tier decoder0: tbt_target_ms = {target_ms} {why}",))


def test_without_a_target_the_preset_decides() -> None:
    assert budget(fleet("")) == "4096"


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        ("tbt_target_ms = 0", {}, "tbt_target_ms: takes milliseconds from 0.001 to 60000, not 0"),
        ("tbt_target_ms = true", {}, "tbt_target_ms: takes milliseconds"),
        ("tbt_target_ms = 1e-300", {}, "tbt_target_ms: takes milliseconds"),
        (
            "tbt_target_ms = 60\nprompt_ms_per_token = 5e-324",
            {},
            "prompt_ms_per_token: takes milliseconds from 0.001 to 10000, not 5e-324",
        ),
        (
            "tbt_target_ms = 60\nprompt_ms_per_token = 10001",
            {},
            "prompt_ms_per_token: takes milliseconds from 0.001 to 10000",
        ),
        ("tbt_target_ms = 60", {"role": "prefiller"}, "nothing for a prefiller"),
        ("tbt_target_ms = 60", {"preset": "cpu"}, "decode_step_ms: takes what was measured"),
        ("tbt_target_ms = 60", {"engine": "tiny"}, "nothing with engine = 'tiny'"),
        ("decode_step_ms = 10", {}, "decode_step_ms: takes nothing without tbt_target_ms"),
        (
            'tbt_target_ms = 60\nflags = ["--max_num_batched_tokens=512"]',
            {},
            "which tbt_target_ms sets",
        ),
        ('tbt_target_ms = 60\nflags = ["--max-num-batched=512"]', {}, "which tbt_target_ms sets"),
        ('tbt_target_ms = 60\nflags = ["--max-num-batched-tokens.x=5"]', {}, "which tbt_target_ms sets"),
        (
            'tbt_target_ms = 60\nflags = ["--config", "a.yaml"]',
            {},
            "whose file may say what tbt_target_ms sets",
        ),
    ],
)
def test_what_makes_no_sense_is_named(more: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fleet(more, **options)


def test_the_guide_shows_the_presets_as_they_are() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", GUIDE.read_text("utf-8"), re.MULTILINE
    )
    assert {preset for preset, *_ in rows} == {name for name, preset in PRESETS.items() if preset.step}
    for preset, decode_ms, prompt_ms, tokens in rows:
        assert PRESETS[preset].step == StepTime(float(decode_ms), float(prompt_ms))
        assert StepTime(float(decode_ms), float(prompt_ms)).chunk_tokens(60) == int(tokens)
