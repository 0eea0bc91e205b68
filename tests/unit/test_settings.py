from __future__ import annotations

from pathlib import Path

import pytest

from conserve import ConfigError
from conserve.settings import Settings, WorkerAt


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("CONSERVE_"):
            monkeypatch.delenv(name)


def test_workers_come_from_the_environment_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVE_PREFILLERS", "http://p0:8000 http://p1:8000/,name=second")
    monkeypatch.setenv("CONSERVE_DECODERS", "https://d0:8000,kv_blocks=40000,block_size=32,tier=h200")
    settings = Settings()
    assert settings.prefillers == (WorkerAt("http://p0:8000"), WorkerAt("http://p1:8000", name="second"))
    assert settings.decoders == (WorkerAt("https://d0:8000", kv_blocks=40_000, block_size=32, tier="h200"),)
    assert [role for role, _ in settings.workers()] == ["prefiller", "prefiller", "decoder"]


def test_arguments_win_over_the_environment_and_empty_variables_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CONSERVE_LOW_WATERMARK", "0.5")
    monkeypatch.setenv("CONSERVE_WORKER_KEY", "")
    assert Settings().low_watermark == 0.5
    assert Settings(low_watermark=0.9).low_watermark == 0.9
    assert Settings().worker_key is None


@pytest.mark.parametrize("text", ["none", "never", ""])
def test_conversations_may_be_kept_for_ever(text: str) -> None:
    assert Settings(idle_timeout_s=text).idle_timeout_s is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("low_watermark", 0, "greater than 0"),
        ("low_watermark", 1.01, "less than or equal to 1"),
        ("queue_limit", -1, "greater than or equal to 0"),
        ("port", 65_536, "less than or equal to 65535"),
        ("connector", "carrier-pigeon", "'nixl'"),
        ("queue_timeout_s", "soon", "valid number"),
        ("decoders", "d0:8000", "http://host:port"),
        ("decoders", "http://d0:8000,kv_blocks=0", "above 0"),
        ("decoders", "http://d0:8000,kv_blocks=1e4", "whole number"),
        ("decoders", "http://d0:8000,colour=red", "known: name, tier"),
        ("decoders", "http://", "http://host:port"),
        ("no_such_thing", 1, "no such setting"),
        ("polcy", "strict", "no such setting; did you mean policy?"),
        ("policy", "strct", "not 'strct'; did you mean strict?"),
        ("policy", "strict, ampd", "takes one policy; `conserve sim` and `conserve bench live`"),
        ("policy", "ampd(min)", "takes the name alone, ampd; its options are policy_option's"),
    ],
)
def test_what_is_out_of_range_is_named_with_its_range(name: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(**{name: value})
    assert refused.value.key == name
    assert said in str(refused.value)
    assert name in str(refused.value)


def test_every_setting_that_is_wrong_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(low_watermark=2, queue_limit=-1)
    assert "low_watermark" in str(refused.value)
    assert "queue_limit" in str(refused.value)


def test_secrets_are_never_shown() -> None:
    settings = Settings(worker_key="sk-hidden", control_key="sk-hidden", secret="00" * 16)
    assert "hidden" not in repr(settings)
    with pytest.raises(ConfigError) as refused:
        Settings(secret="hidden").router()
    assert "hidden" not in str(refused.value)
    assert "32 hexadecimal digits" in str(refused.value)


def test_a_router_has_the_workers_unless_they_join_later() -> None:
    settings = Settings(prefillers="http://p0:1", decoders="http://d0:1,kv_blocks=10", both="http://w0:1")
    assert [row.role for row in settings.router().snapshot().workers] == ["prefiller", "decoder", "both"]
    assert settings.router(empty=True).snapshot().workers == []


def test_an_option_without_meaning_for_the_role_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_blocks means nothing for a prefiller"):
        Settings(prefillers="http://p0:1,kv_blocks=10").router()


def test_every_setting_reaches_the_router_and_the_dispatcher(tmp_path: Path) -> None:
    settings = Settings(decoders="http://d0:1", queue_timeout_s=1, worker_key="k")
    settings.dispatcher(settings.router())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "fe80::1%eth0", "localhost", "my_host-1.example.org."])
def test_a_door_listens_at_an_address_or_a_name(host: str) -> None:
    assert Settings(host=host).host == host


@pytest.mark.parametrize(
    "host", ["", "bad host", "[::1]", "1.2.3", "1.2.3.999", "http://h", "h:80", "-h", "h..i", "a" * 64, "*"]
)
def test_what_is_no_host_is_named(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(host=host)
    assert caught.value.key == "host"


def test_a_time_to_keep_means_nothing_where_nothing_is_kept() -> None:
    assert Settings(retention="pin", retention_ttl_s=60).retention_ttl_s == 60
    with pytest.raises(ConfigError, match="means nothing unless retention is pin") as caught:
        Settings(retention_ttl_s=480)
    assert caught.value.key == "retention_ttl_s"


def test_retention_needs_a_connector_that_can_keep_turns() -> None:
    pinning = Settings(retention="pin", decoders="http://d0:1")
    pinning.dispatcher(pinning.router())
    cannot = Settings(retention="pin", connector="none")
    with pytest.raises(ConfigError, match="unless the connector is nixl") as caught:
        cannot.dispatcher(cannot.router())
    assert caught.value.key == "retention"
    with pytest.raises(ConfigError, match="retain: takes an object"):
        Settings(connector_shape='{"retain": 1}')


def test_a_misspelt_variable_is_told_with_what_was_meant() -> None:
    environment = {
        "CONSERVE_LOW_WATERMRK": "0.7",
        "CONSERVE_TRACES": "/t",
        "CONSERVE_POLICY": "strict",
        "HOME": "/",
    }
    assert list(Settings.misspelt(environment)) == [
        "CONSERVE_LOW_WATERMRK is no setting and is ignored; did you mean CONSERVE_LOW_WATERMARK?"
    ]
