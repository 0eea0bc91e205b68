"""What is sent: lengths at the asked scale, histories that keep what the trace kept, nothing past the engines' context."""

from __future__ import annotations

from pathlib import Path

import pytest

from conserve import ConfigError
from conserve.live import LivePlan, Script
from conserve.live.engines import from_file, from_urls, tiny
from conserve.live.plan import scaled, scripts
from conserve.sim.contender import Contender
from conserve.sim.workload import Conversation, TurnRecord

TASK = Conversation(
    id="task-42",
    turns=(
        TurnRecord(append_tokens=1000, output_tokens=100),
        TurnRecord(append_tokens=200, reuse_tokens=1100, output_tokens=50, gap_s=3.0, visible=True),
        TurnRecord(append_tokens=300, reuse_tokens=400, output_tokens=50, gap_s=5.0, reset=True),
    ),
    shared_prefix_tokens=600,
)


def plan(**changed: object) -> LivePlan:
    fields: dict[str, object] = {
        "trace": "swe-agent",
        "policies": ("strict", "collocated"),
        "rate_per_s": 1.0,
    }
    return LivePlan(**{**fields, **changed})  # type: ignore[arg-type]


def test_lengths_and_waits_are_scaled() -> None:
    small = scaled(TASK, scale=0.1, gap_scale=0.5, context_limit=1000)
    assert small is not None
    first, second, third = small.turns
    assert (first.append_tokens, first.output_tokens, small.shared_prefix_tokens) == (100, 10, 60)
    assert (second.reuse_tokens, second.append_tokens, second.gap_s) == (110, 20, 1.5)
    assert (third.reuse_tokens, third.append_tokens) == (40, 30), "a compacted history keeps its head only"


def test_a_history_that_was_kept_whole_is_kept_whole_whatever_rounding_says() -> None:
    for scale in (0.013, 0.037, 0.3, 1.0):
        small = scaled(TASK, scale=scale, context_limit=10_000)
        assert small is not None
        assert small.turns[1].reuse_tokens == small.turns[0].context_tokens


def test_a_conversation_ends_before_the_turn_that_does_not_fit() -> None:
    cut = scaled(TASK, scale=1.0, context_limit=1200)
    assert cut is not None
    assert len(cut.turns) == 1
    assert scaled(TASK, scale=1.0, context_limit=1099) is None
    assert len((scaled(TASK, scale=1.0, max_turns=2, context_limit=9999) or TASK).turns) == 2


def test_every_policy_gets_the_same_round_and_each_round_another() -> None:
    one, again = (plan().tasks(0, context_limit=10_000) for _ in range(2))
    assert one == again
    assert one != plan().tasks(1, context_limit=10_000)
    assert plan().arrivals_s(0, 5) == plan().arrivals_s(0, 5)
    assert plan().arrivals_s(0, 5)[0] == 0


def test_a_file_of_conversations_is_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "a", "turns": [{"input_tokens": 30, "append_tokens": 30, "output_tokens": 4}]}\n')
    told = plan(trace=str(file), conversations=3).tasks(0, context_limit=100)
    assert [task.turns[0].append_tokens for task in told] == [30, 30, 30]


def test_a_broken_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    for text, named in (('{"id": 1}\n', "mine.jsonl:1"), ("", "holds no conversation")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=named):
            plan(trace=str(file)).check_trace()
    with pytest.raises(ConfigError, match="lmcache_miniswe"):
        plan(trace="mini-swe", traces=tmp_path).check_trace()
    plan().check_trace()


def test_tool_time_is_what_passes_before_the_answer_that_is_seen() -> None:
    [script] = scripts([TASK], [0.5])
    assert script == Script.of(TASK, name="task-0", arrival_s=0.5)
    assert script.tool_s == 3.0
    assert script.appended(2) == 1200


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"policies": ("strict", "best")}, "policy is 'best'"),
        ({"policies": ("strict", "strict")}, "each once"),
        ({"policies": ()}, "at least one"),
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"scale": float("nan")}, "scale"),
        ({"gap_scale": -1.0}, "gap_scale"),
        ({"rounds": 0}, "rounds"),
        ({"trace": "nope"}, "trace is 'nope', which is no file; choose synthetic:NAME.* swe-agent"),
        ({"trace": "synthetic:nope"}, "trace is 'synthetic:nope'"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(changed: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        plan(**changed)


def test_a_trace_that_does_not_fit_says_so() -> None:
    with pytest.raises(ConfigError, match="use a smaller one"):
        plan().tasks(0, context_limit=10)


def test_policies_that_need_prefillers_are_refused_where_there_are_none() -> None:
    alike = from_urls([], [], ["http://w0:8000", "http://w1:8000"], connector="nixl")
    alike.check(["collocated", "follow-kv", "strict@both"])
    with pytest.raises(
        ConfigError, match=r"policy strict needs at least one prefiller .* strict@both has all"
    ):
        alike.check(["collocated", "strict"])
    useless = from_urls(["http://p0:8000"], [], [], connector="nixl")
    useless.check(["follow-kv@both"])
    with pytest.raises(ConfigError, match="policy follow-kv needs a decoder"):
        useless.check(["follow-kv"])
    with pytest.raises(ConfigError, match="decoder: 'd0:8000' is not a worker's URL"):
        from_urls([], ["d0:8000"], [], connector="nixl")
    with pytest.raises(ConfigError, match="tiny:1p2d"):
        tiny("tiny:0p2d")


def test_a_policy_may_have_options_and_all_workers_do_both() -> None:
    read = Contender.read("ampd(min, X=0)@both")
    assert (read.name, read.options, read.policy) == ("ampd", ("rule=min", "X=0"), "ampd(min, X=0)")
    assert Contender.read("strict").options == ()
    plan(policies=("strict", "strict@both", "ampd(min)", "ampd(slo)"))
    with pytest.raises(ConfigError, match=r"policy is 'strict@all'; choose from .* with @both at the end"):
        plan(policies=("strict@all",))
    one = from_urls(["http://p0:8000"], ["http://d0:8000"], [], connector="nixl").workers[0]
    assert one.role_under("ampd(min)") == one.role_under("follow-kv") == "prefiller"
    assert one.role_under("ampd(min)@both") == one.role_under("follow-kv@both") == "both"


def test_a_worker_is_told_to_the_door_by_what_it_does_under_the_policy() -> None:
    urls = from_urls(
        ["http://p0:8000,bootstrap=http://p0:9000"], ["http://d0:8000,name=big"], [], connector="mooncake"
    )
    urls.check(["strict"])
    prefiller, decoder = urls.workers
    assert prefiller.option("strict") == (
        "--prefiller",
        "http://p0:8000,bootstrap=http://p0:9000,name=p0",
    )
    assert decoder.option("strict") == ("--decoder", "http://d0:8000,name=big")
    assert prefiller.option("collocated")[0] == decoder.option("collocated")[0] == "--both"


def test_a_door_takes_nothing_of_the_policy_in_the_fleet_file_nor_what_keeps_others_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        'model = "m"\nconnector = "none"\nfirst_port = 0\n[[tier]]\nrole = "both"\nengine = "tiny"\n'
        '[router]\nqueue_limit = 9\npolicy = "follow-kv"\npolicy_option = ["roles=auto"]\n'
        f'control_key = "{"s" * 32}"\nconversation_headers = ["x-task"]\n'
    )
    told = from_file(file).router_env
    assert told["CONSERVE_QUEUE_LIMIT"] == "9"
    assert not [key for key in told if "POLICY" in key or "CONTROL" in key or "HEADERS" in key]
