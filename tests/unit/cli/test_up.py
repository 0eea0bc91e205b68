"""`conserve up`: what is wrong is said before anything starts, and fleets do not share a folder for their logs."""

from __future__ import annotations

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
