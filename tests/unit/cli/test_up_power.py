"""`conserve up` says which power limits it would set, and refuses those that a GPU does not take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conserve.cli import main
from tests.support import nvml
from tests.support.nvml import NO_PERMISSION, StandIn

FLEET = """
model = "random"
first_port = 0
first_handoff_port = 0
[[tier]]
name = "prefill"
role = "prefiller"
engine = "tiny"
gpus = [0]
[[tier]]
name = "decode"
role = "decoder"
engine = "tiny"
gpus = [1]
power_limit_w = {limit_w}
[router]
port = 0
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    nvml.load()
    stand_in = StandIn(tmp_path / "gpus", gpus=2)
    monkeypatch.setenv(nvml.VARIABLE, str(stand_in.path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return stand_in


def fleet(tmp_path: Path, limit_w: int) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(limit_w=limit_w))
    return str(path)


def test_a_dry_run_shows_each_limit_and_sets_none(
    machine: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", fleet(tmp_path, 200), "--dry-run"]) == 0
    line = "# power limit of GPU 1 (NVIDIA A40): 200 W while the fleet runs, 300 W now, takes 100 to 300 W"
    assert line in capsys.readouterr().out.splitlines()
    assert main(["up", fleet(tmp_path, 200), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["power_limits"] == [
        {"gpu": 1, "limit_w": 200, "name": "NVIDIA A40", "now_w": 300, "least_w": 100, "most_w": 300}
    ]
    assert machine.gpu(1).sets == 0


def test_a_dry_run_needs_no_gpu(machine: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.machine.init_rc = nvml.DRIVER_NOT_LOADED
    assert main(["up", fleet(tmp_path, 200), "--dry-run"]) == 0
    assert "# power limit of GPU 1: 200 W while the fleet runs; the GPU cannot be asked here" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("options", [["--dry-run"], []])
def test_a_limit_outside_the_range_names_the_key(
    machine: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main(["up", fleet(tmp_path, 350), *options]) == 2
    assert "tier[1].power_limit_w: takes 100 to 300 W on GPU 1 (NVIDIA A40), not 350" in (
        capsys.readouterr().err
    )
    assert machine.gpu(1).sets == 0


def test_without_permission_nothing_starts(
    machine: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.gpu(1).set_rc = NO_PERMISSION
    assert main(["up", fleet(tmp_path, 200), "--log-dir", str(tmp_path / "logs")]) == 1
    assert "only root may set it: run as root, or leave the key out" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


@pytest.mark.timeout(60)
def test_limits_hold_while_it_runs_and_survive_no_end(machine: StandIn, tmp_path: Path) -> None:
    """Ended with SIGTERM they are put back at once; ended with SIGKILL, by the next start."""
    env = os.environ | {"LD_LIBRARY_PATH": str(nvml.library().parent)}
    argv = [sys.executable, "-P", "-m", "conserve.cli", "up", fleet(tmp_path, 200)]
    argv += ["--log-dir", str(tmp_path / "logs")]

    def started() -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("starting 2 workers"):
                return process, lines
        raise AssertionError("".join(lines))

    first, _ = started()
    assert machine.gpu(1).limit_mw == 200_000
    assert machine.gpu(0).sets == 0, "its tier names no limit"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert machine.gpu(1).limit_mw == 200_000

    second, lines = started()
    assert lines[:2] == [
        "GPU 1 (NVIDIA A40): power limit 300 W again\n",
        "GPU 1 (NVIDIA A40): power limit 200 W, was 300 W until the end\n",
    ]
    second.send_signal(signal.SIGTERM)
    rest, _ = second.communicate()
    assert "GPU 1 (NVIDIA A40): power limit 300 W again" in rest
    assert machine.gpu(1).limit_mw == 300_000
