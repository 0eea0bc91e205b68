"""The core through Python: columns in, columns out, errors with the path of the key."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from conserve import ConfigError
from conserve.sim.run import SimWorkload, columns, simulate
from conserve.sim.workload import Conversation, TurnRecord, generate, poisson

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "simulator.md"
PAIR = {"engines": [{"role": "prefiller"}, {"role": "decoder"}]}


def conversation(*turns: TurnRecord) -> Conversation:
    return Conversation(id="task-42", turns=turns)


def test_a_conversation_is_handed_over_once_and_answers_at_its_visible_turn() -> None:
    task = conversation(
        TurnRecord(append_tokens=4000, output_tokens=50),
        TurnRecord(append_tokens=200, output_tokens=30, reuse_tokens=4050, gap_s=2.0, visible=True),
        TurnRecord(append_tokens=100, output_tokens=10, reuse_tokens=4280),
    )
    result = simulate(PAIR, columns([task], arrivals_s=[1.0]), seed=1)
    turns, row = result.turns(), result.conversations()
    assert turns["prefiller"] == [0, -1, -1]
    assert turns["decoder"] == [1, 1, 1]
    assert turns["prompt_tokens"] == [4000, 4250, 4380]
    assert row["handoffs"] == [1]
    assert row["status"] == ["finished"]
    assert row["ttfet_s"] == pytest.approx([turns["first_token_s"][1] - 1.0])
    assert row["tool_s"] == [2.0]
    assert all(math.isnan(at) for at in turns["transfer_end_s"][1:])
    assert result.counters()["handoffs"] == 1
    assert result.diagnosis()["outcome"] == "finished"
    engines = result.engines()
    assert sum(engines["generated_tokens"]) == 90
    for joules, seconds in zip(engines["idle_j"], engines["idle_s"], strict=True):
        assert joules == pytest.approx(75.0 * seconds)


def test_the_same_seed_gives_the_same_columns() -> None:
    tasks = list(generate("swe-agent", 20, seed=3))
    workload = columns(tasks, arrivals_s=poisson(20, rate_per_s=1.0, seed=4))
    scenario = {"engines": [{"role": "prefiller"}, {"role": "decoder"}, {"role": "decoder"}], "events": True}
    first, second = (simulate(scenario, workload, seed=5) for _ in range(2))
    assert repr(first.turns()) == repr(second.turns())
    assert first.events == second.events
    assert len(first.events) > 20


def test_a_shared_head_is_found_by_the_second_conversation() -> None:
    tasks = [
        Conversation(id=str(at), turns=(TurnRecord(3000, 5),), shared_prefix_tokens=1600) for at in range(2)
    ]
    both = {"engines": [{"role": "both"}]}
    alone = simulate(both, columns(tasks, arrivals_s=[0.0, 9.0]), seed=1)
    shared = simulate(both, columns(tasks, arrivals_s=[0.0, 9.0], shared_prefix=True), seed=1)
    assert alone.turns()["cached_tokens"] == [0, 0]
    assert shared.turns()["cached_tokens"] == [0, 1600]


@pytest.mark.parametrize(
    ("scenario", "key"),
    [
        ({"engines": [{"role": "both", "preset": "b200"}]}, "engines[0].preset"),
        ({"engines": [{"role": "both", "watermark": 1.0}]}, "engines[0].watermark"),
        ({"engines": [{"role": "both"}], "router": {"low_watermark": 2}}, "router.low_watermark"),
    ],
)
def test_a_bad_scenario_names_the_path_of_its_key(scenario: dict[str, object], key: str) -> None:
    workload = columns([conversation(TurnRecord(10, 1))], arrivals_s=[0.0])
    with pytest.raises(ConfigError) as caught:
        simulate(scenario, workload, seed=1)
    assert caught.value.key == key


def test_a_bad_column_names_its_place() -> None:
    with pytest.raises(ValueError, match=r"output\[1\] = 0: at least 1"):
        SimWorkload(arrival_s=[0.0], turns=[2], append=[5, 5], output=[1, 0], gap_s=[0.0, 0.0])
    with pytest.raises(ValueError, match="2 arrival times for 1 conversations"):
        columns([conversation(TurnRecord(10, 1))], arrivals_s=[0.0, 1.0])


def test_the_guide_shows_every_key_with_its_default() -> None:
    shown = json.loads(re.findall(r"```json\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0])
    tasks = list(generate("swe-agent", 10, seed=1))
    workload = columns(tasks, arrivals_s=poisson(10, rate_per_s=2.0, seed=1))
    full, least = (
        simulate(scenario, workload, seed=1) for scenario in (shown, {"engines": [{"role": "both"}]})
    )
    assert repr(full.turns()) == repr(least.turns())
    assert repr(full.engines()) == repr(least.engines())
    # A key that the guide lacks would be a key of the error that serde lists for an unknown one.
    with pytest.raises(ConfigError) as caught:
        simulate({"engines": [], "nonsense": 1}, workload, seed=1)
    known = set(re.findall(r"`(\w+)`", str(caught.value))) - {"nonsense", "checks"}
    assert known == set(shown)


def test_the_guides_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(code, names)
    joules = names["joules"]
    assert isinstance(joules, float)
    assert joules > 0


def test_a_recorded_call_is_sent_as_an_engine_can_meet_it() -> None:
    turns = (
        TurnRecord(append_tokens=1_000, output_tokens=0),
        TurnRecord(append_tokens=10, output_tokens=5, reuse_tokens=2_000, reset=True),
    )
    workload = columns([conversation(*turns)], arrivals_s=[0.0])
    result = simulate({"engines": [{"role": "both"}]}, workload, seed=1)
    rows = result.turns()
    assert list(rows["output_tokens"]) == [1, 5], "a call that generated nothing is answered by a token"
    assert list(rows["prompt_tokens"]) == [1_000, 2_010], "the prompt is the recorded one"
    # 1,001 tokens of history, of which 1,000 have KV: 62 whole blocks.
    assert rows["cached_tokens"][1] <= 992
