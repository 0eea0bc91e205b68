"""`conserve up`: what is wrong is said before anything starts, and fleets do not share a folder for their logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conserve.cli import main
from conserve.cli.up import _default_log_dir

FLEET = """
model = "m"
connector = "none"
first_port = 0
[[tier]]
role = "both"
engine = "tiny"
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [("", "host: takes an IP address"), ("[router]\n", "router.host: takes an IP address")],
    ids=["workers", "router"],
)
def test_a_dry_run_names_a_host_that_is_none(
    tmp_path: Path, more: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    host = 'host = "bad host"\n'
    path.write_text(FLEET + more + host if more else host + FLEET)
    assert main(["up", str(path), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ('policy = "follow-kv"\npolicy_option = ["roles=maybe"]', "router.policy follow-kv: roles = "),
        (
            'policy = "follow-kv"\npolicy_option = ["roles=auto handoff=never"]',
            "router.policy follow-kv: roles = ",
        ),
        ('tls_cert = "no.pem"\ntls_key = "no.pem"', "router.tls_cert: cannot read no.pem"),
        ('tls_cert = "fleet.toml"', "router.tls_cert needs tls_key"),
        ('worker_ca = "fleet.toml"', "router.worker_ca: fleet.toml holds no certificate"),
    ],
)
@pytest.mark.parametrize("how", [["--dry-run"], []], ids=["dry run", "run"])
def test_what_the_router_would_refuse_is_refused_before_anything_starts(
    tmp_path: Path,
    router: str,
    said: str,
    how: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.toml").write_text(f"{FLEET}[router]\n{router}\n")
    assert main(["up", "fleet.toml", *how]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out


def test_a_target_in_vain_is_warned_of_beside_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        'model = "m"\nconnector = "none"\nfirst_port = 0\n[[tier]]\nrole = "both"\npreset = "h200"\ngpus = [0]\ntbt_target_ms = 7\n'
    )
    assert main(["up", str(path), "--dry-run", "--json"]) == 0
    told = capsys.readouterr()
    warning = "tier both0: tbt_target_ms = 7 cannot be kept: a decode step alone takes 7.3 ms"
    assert json.loads(told.out)["warnings"] == [warning]
    assert warning in told.err


def test_fleet_files_of_one_name_do_not_share_their_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, other = tmp_path / "one" / "fleet.toml", tmp_path / "other" / "fleet.toml"
    for each in (one, other):
        each.parent.mkdir()
        each.touch()
    found = _default_log_dir(one)
    assert found.parent == tmp_path / "state" / "conserve"
    assert found.name.startswith("fleet-")
    assert found != _default_log_dir(other)
    monkeypatch.chdir(one.parent)
    assert _default_log_dir(Path("fleet.toml")) == found, "however it is named"
