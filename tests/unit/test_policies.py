"""The names of policies in Python are those of the core."""

from __future__ import annotations

import pytest

from conserve import ConfigError, Decoder, Router
from conserve._core import policies
from conserve.policies import DEFAULT_POLICY, POLICIES
from conserve.settings import Settings


def test_the_names_are_those_of_the_core() -> None:
    assert tuple(name for name, _, _ in policies()) == POLICIES


def test_the_default_is_the_core_s_wherever_none_is_named() -> None:
    assert Router().snapshot().policy == DEFAULT_POLICY
    assert Settings().policy == DEFAULT_POLICY
    assert f"policy='{DEFAULT_POLICY}'" in (Router.__text_signature__ or "")


def test_a_router_says_which_variant_it_runs() -> None:
    router = Router(decoders=[Decoder("http://d0:8000", kv_blocks=9)], policy="ampd", policy_options={"X": 0})
    assert router.snapshot().policy == "ampd(slo, X=0, pcache=1)"
    assert Router(policy="ppd").snapshot().policy == "ppd(512)"
    assert Router(policy="ppd", policy_options={"threshold": 64, "pcache": False}).snapshot().policy == (
        "ppd(64, pcache=0)"
    )


def test_options_are_settings() -> None:
    settings = Settings(policy="ampd", policy_option=["rule=min", "blind=1"])
    assert settings.router(empty=True).snapshot().policy == "ampd(min, X=1, pcache=1, blind=1)"
    with pytest.raises(ConfigError, match="write key=value"):
        Settings(policy_option="rule")
    with pytest.raises(ConfigError, match="takes each option once, not 'rule' 2 times"):
        Settings(policy_option="rule=min blind=1 rule=slo")


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVE_POLICY", "ampd")
    monkeypatch.setenv("CONSERVE_POLICY_OPTION", "rule=min X=0")
    assert Settings().router(empty=True).snapshot().policy == "ampd(min, X=0, pcache=1)"


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("strict", {"x": 1}, "policy strict has no option"),
        ("ampd", {"rule": "luck"}, "rule = luck is out of range: slo, remote_first"),
        ("ampd", {"ttft_ms": 0}, "milliseconds, above 0"),
    ],
)
def test_what_a_policy_does_not_take_is_refused(
    policy: str, options: dict[str, str | float], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Router(policy=policy, policy_options=options)  # type: ignore[arg-type]
