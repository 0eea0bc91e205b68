"""Power limits are put back, however the process that set them ended; and nothing else is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conserve.energy.power import Cap, PowerError, PowerLimits
from conserve.errors import ConfigError
from tests.support import nvml
from tests.support.nvml import GPU_IS_LOST, NO_PERMISSION, StandIn

Gpus = Callable[[int], StandIn]

HOLDER = """
import sys, pathlib
from conserve.energy.power import Cap, PowerLimits
limits = PowerLimits(pathlib.Path(sys.argv[1]))
limits.restore_left_over(print)
with limits.applied([Cap(0, 200, "tier[0].power_limit_w")], print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "power"


@pytest.fixture
def limits(folder: Path, tmp_path: Path) -> PowerLimits:
    boot = tmp_path / "boot_id"
    boot.write_text("this-boot\n")
    return PowerLimits(folder, boot_id=boot)


def cap(gpu: int, limit_w: int) -> Cap:
    return Cap(gpu, limit_w, f"tier[{gpu}].power_limit_w")


def leave(folder: Path, gpu: int, *, boot_id: str = "this-boot", set_mw: int = 200_000) -> Path:
    """A record as a killed process leaves it."""
    folder.mkdir(exist_ok=True)
    record = {
        "boot_id": boot_id,
        "uuid": f"GPU-{gpu:08d}",
        "previous_mw": 300_000,
        "set_mw": set_mw,
        "pid": 1,
    }
    path = folder / f"GPU-{gpu:08d}.json"
    path.write_text(json.dumps(record))
    return path


def test_limits_hold_inside_and_are_put_back_after(gpus: Gpus, limits: PowerLimits, folder: Path) -> None:
    machine = gpus(3)
    told: list[str] = []
    machine.gpu(1).limit_mw = 250_000
    with limits.applied([cap(0, 200), cap(1, 150)], told.append):
        assert [machine.gpu(index).limit_mw for index in range(3)] == [200_000, 150_000, 300_000]
        assert len(limits.left_over()) == 2, "written down while they hold"
    assert [machine.gpu(index).limit_mw for index in range(3)] == [300_000, 250_000, 300_000]
    assert machine.gpu(2).sets == 0
    assert limits.left_over() == []
    assert told[0] == "GPU 0 (NVIDIA A40): power limit 200 W, was 300 W until the end"
    assert told[-1] == "GPU 0 (NVIDIA A40): power limit 300 W again"


def test_an_error_inside_puts_them_back_too(gpus: Gpus, limits: PowerLimits) -> None:
    machine = gpus(1)
    with pytest.raises(ZeroDivisionError), limits.applied([cap(0, 200)], lambda _: None):
        raise ZeroDivisionError
    assert machine.gpu(0).limit_mw == 300_000


@pytest.mark.parametrize(("limit_w", "taken"), [(99, False), (100, True), (300, True), (301, False)])
def test_the_range_is_the_devices(gpus: Gpus, limits: PowerLimits, limit_w: int, taken: bool) -> None:
    machine = gpus(1)
    if taken:
        with limits.applied([cap(0, limit_w)], lambda _: None):
            assert machine.gpu(0).limit_mw == limit_w * 1000
        return
    said = rf"tier\[0\].power_limit_w: takes 100 to 300 W on GPU 0 \(NVIDIA A40\), not {limit_w}"
    with pytest.raises(ConfigError, match=said) as refused, limits.applied([cap(0, limit_w)], lambda _: None):
        pytest.fail("never entered")
    assert refused.value.key == "tier[0].power_limit_w"
    assert machine.gpu(0).sets == 0


def test_a_gpu_that_is_not_there_names_the_key(gpus: Gpus, limits: PowerLimits) -> None:
    gpus(1)
    with pytest.raises(ConfigError, match=r"tier\[3\].power_limit_w: there is no GPU 3"):
        limits.applied([cap(3, 200)], lambda _: None).__enter__()


def test_without_permission_all_are_refused_and_put_back(
    gpus: Gpus, limits: PowerLimits, folder: Path
) -> None:
    machine = gpus(2)
    machine.gpu(1).set_rc = NO_PERMISSION
    with pytest.raises(PowerError, match=r"tier\[1\].power_limit_w: .* only root may set it"):
        limits.applied([cap(0, 200), cap(1, 200)], lambda _: None).__enter__()
    assert (machine.gpu(0).limit_mw, machine.gpu(1).limit_mw) == (300_000, 300_000)
    assert limits.left_over() == []


def test_without_a_driver_a_limit_is_refused(gpus: Gpus, limits: PowerLimits) -> None:
    gpus(1).machine.init_rc = nvml.DRIVER_NOT_LOADED
    with pytest.raises(PowerError, match="there is no NVIDIA driver"):
        limits.applied([cap(0, 200)], lambda _: None).__enter__()


def test_without_limits_the_driver_is_not_asked(gpus: Gpus, limits: PowerLimits) -> None:
    gpus(1).machine.init_rc = nvml.DRIVER_NOT_LOADED
    with limits.applied([], lambda _: None):
        limits.restore_left_over(lambda _: None)


def test_what_a_killed_process_left_is_put_back_first(gpus: Gpus, limits: PowerLimits, folder: Path) -> None:
    machine = gpus(2)
    machine.gpu(1).limit_mw = 200_000
    leave(folder, 1)
    told: list[str] = []
    limits.restore_left_over(told.append)
    assert machine.gpu(1).limit_mw == 300_000
    assert machine.gpu(0).sets == 0, "it was never written down"
    assert told == ["GPU 1 (NVIDIA A40): power limit 300 W again"]
    assert limits.left_over() == []


def test_a_limit_that_somebody_else_set_since_stays(gpus: Gpus, limits: PowerLimits, folder: Path) -> None:
    machine = gpus(1)
    machine.gpu(0).limit_mw = 220_000
    leave(folder, 0)
    limits.restore_left_over(lambda _: None)
    assert (machine.gpu(0).limit_mw, machine.gpu(0).sets) == (220_000, 0)
    assert limits.left_over() == []


def test_a_limit_of_another_boot_is_gone_by_itself(gpus: Gpus, limits: PowerLimits, folder: Path) -> None:
    machine = gpus(1)
    machine.gpu(0).limit_mw = 200_000
    leave(folder, 0, boot_id="the-boot-before")
    limits.restore_left_over(lambda _: None)
    assert machine.gpu(0).sets == 0
    assert limits.left_over() == []


def test_a_record_cut_short_changed_nothing_yet(gpus: Gpus, limits: PowerLimits, folder: Path) -> None:
    machine = gpus(1)
    leave(folder, 0).write_text('{"boot_id": "this-b')
    limits.restore_left_over(lambda _: None)
    assert machine.gpu(0).sets == 0
    assert limits.left_over() == []


@pytest.mark.parametrize("trouble", ["permission", "lost", "away"])
def test_what_cannot_be_put_back_is_kept_for_the_next_start(
    gpus: Gpus, limits: PowerLimits, folder: Path, trouble: str
) -> None:
    machine = gpus(1)
    machine.gpu(0).limit_mw = 200_000
    path = leave(folder, 0 if trouble != "away" else 3)
    machine.gpu(0).set_rc = {"permission": NO_PERMISSION, "lost": GPU_IS_LOST, "away": 0}[trouble]
    told: list[str] = []
    limits.restore_left_over(told.append)
    assert limits.left_over() == [path]
    assert "not put back" in told[0]
    if trouble == "away":
        return
    assert "nvidia-smi -i 0 -pl 300" in told[0]
    machine.gpu(0).set_rc = 0
    limits.restore_left_over(lambda _: None)
    assert machine.gpu(0).limit_mw == 300_000


def holder(folder: Path, stand_in: StandIn) -> subprocess.Popen[str]:
    """Another process that holds a limit, with the library found as a real one is."""
    env = os.environ | {
        nvml.VARIABLE: str(stand_in.path),
        "LD_LIBRARY_PATH": str(nvml.library().parent),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line == "held\n":
            return process
    raise AssertionError("the process that was to hold the limit ended")


def test_while_its_owner_lives_a_limit_is_the_owners(gpus: Gpus, folder: Path) -> None:
    machine = gpus(1)
    owner, limits = holder(folder, machine), PowerLimits(folder)
    try:
        limits.restore_left_over(pytest.fail)
        assert machine.gpu(0).limit_mw == 200_000
        with pytest.raises(PowerError, match="another `conserve up` has set the limit"):
            limits.applied([cap(0, 150)], lambda _: None).__enter__()
        assert machine.gpu(0).limit_mw == 200_000
    finally:
        owner.communicate("")
    assert machine.gpu(0).limit_mw == 300_000


def test_a_process_killed_with_9_leaves_a_record_that_the_next_start_works_off(
    gpus: Gpus, folder: Path
) -> None:
    machine = gpus(1)
    owner = holder(folder, machine)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert machine.gpu(0).limit_mw == 200_000, "nobody was there to put it back"
    PowerLimits(folder).restore_left_over(lambda _: None)
    assert machine.gpu(0).limit_mw == 300_000
    assert list(folder.iterdir()) == []
