"""Counters through the real nvidia-ml-py, and the processors' through files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from conserve.energy.meter import Counter, GpuMeter, MeterError, RaplMeter, find
from conserve.energy.nvml import Nvml, NvmlError
from tests.support.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, NOT_SUPPORTED, StandIn

Gpus = Callable[[int], StandIn]


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meter(index: int, clock: Clock) -> GpuMeter:
    gpu = Nvml().gpu(index)
    assert gpu is not None
    return GpuMeter(gpu, now_s=clock)


def test_two_gpus_are_counted_apart(gpus: Gpus) -> None:
    machine, clock = gpus(2), Clock()
    machine.gpu(0).energy_mj = 5_000
    first, second = meter(0, clock), meter(1, clock)
    assert (first.read_uj(), second.read_uj()) == (0, 0), "what was used before is nobody's"
    machine.gpu(0).energy_mj += 300
    machine.gpu(1).energy_mj += 7
    assert (first.read_uj(), second.read_uj()) == (300_000, 7_000)
    assert (first.source, first.name) == ("counter", "GPU 0 (NVIDIA A40)")


@pytest.mark.parametrize("bits", [32, 64])
def test_a_counter_that_wraps_loses_nothing(gpus: Gpus, bits: int) -> None:
    machine, clock = gpus(1), Clock()
    machine.gpu(0).energy_mj = (1 << bits) - 40
    gpu = meter(0, clock)
    gpu.read_uj()
    machine.gpu(0).energy_mj = 10
    clock.now_s += 0.2
    assert gpu.read_uj() == 50_000


def test_a_counter_that_begins_again_counts_nothing_and_goes_on(gpus: Gpus) -> None:
    machine, clock = gpus(1), Clock()
    machine.gpu(0).energy_mj = 1_000_000_000
    gpu = meter(0, clock)
    gpu.read_uj()
    machine.gpu(0).energy_mj = 20
    clock.now_s += 0.2
    assert gpu.read_uj() == 0, "a wrap would mean 3.3 MJ in 0.2 s"
    machine.gpu(0).energy_mj = 25
    assert gpu.read_uj() == 5_000


def test_without_a_counter_power_is_summed_up_and_said_so(gpus: Gpus) -> None:
    machine, clock = gpus(1), Clock()
    machine.gpu(0).energy_rc = NOT_SUPPORTED
    machine.gpu(0).power_mw = 100_000
    gpu = meter(0, clock)
    assert gpu.source == "power samples"
    assert gpu.read_uj() == 0
    clock.now_s += 2.0
    machine.gpu(0).power_mw = 300_000
    assert gpu.read_uj() == 400_000_000, "2 s at (100 + 300) / 2 W"


def test_a_lost_gpu_is_an_error_and_what_it_used_meanwhile_is_not_guessed(gpus: Gpus) -> None:
    machine, clock = gpus(1), Clock()
    gpu = meter(0, clock)
    gpu.read_uj()
    machine.gpu(0).energy_rc = GPU_IS_LOST
    with pytest.raises(MeterError, match=r"GPU 0 \(NVIDIA A40\) does not answer"):
        gpu.read_uj()
    machine.gpu(0).energy_rc, machine.gpu(0).energy_mj = 0, 900
    assert gpu.read_uj() == 0
    machine.gpu(0).energy_mj = 901
    assert gpu.read_uj() == 1_000


@pytest.mark.parametrize(("mig", "rc", "name"), [(0, 0, False), (1, 0, True), (0, NOT_SUPPORTED, False)])
def test_mig_instances_have_no_counter_of_their_own(gpus: Gpus, mig: int, rc: int, name: bool) -> None:
    machine = gpus(1)
    machine.gpu(0).mig, machine.gpu(0).mig_rc = mig, rc
    assert ("MIG" in meter(0, Clock()).name) is name


def test_no_driver_is_said_for_each_zone(gpus: Gpus) -> None:
    gpus(1).machine.init_rc = DRIVER_NOT_LOADED
    found = find(["gpu0", "gpu1"])
    assert not found.meters
    assert set(found.missing) == {"gpu0", "gpu1"}
    assert "there is no NVIDIA driver" in found.missing["gpu0"]


def test_no_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", absent)
    with pytest.raises(NvmlError, match="there is no NVIDIA driver"):
        Nvml()


def test_a_gpu_that_is_not_there_is_said(gpus: Gpus) -> None:
    gpus(1)
    found = find(["gpu0", "gpu7"])
    assert list(found.meters) == ["gpu0"]
    assert found.missing == {"gpu7": "there is no GPU 7"}


def package(folder: Path, name: str, energy_uj: int) -> Path:
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    return zone


def test_packages_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    first = package(tmp_path, "intel-rapl:0", 262_143_328_800)
    second = package(tmp_path, "intel-rapl:1", 500)
    package(tmp_path, "intel-rapl:0:0", 77)
    package(tmp_path, "intel-rapl-mmio:0", 99)
    found = find(["cpu"], powercap=tmp_path)
    rapl = found.meters["cpu"]
    assert isinstance(rapl, RaplMeter)
    assert rapl.name == "2 processor packages"
    assert rapl.read_uj() == 0
    (first / "energy_uj").write_text("50\n")
    (second / "energy_uj").write_text("600\n")
    assert rapl.read_uj() == 100 + 100, "the first one wrapped"


def test_a_file_that_only_root_may_read_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = package(tmp_path, "intel-rapl:0", 0)
    real = Path.read_text

    def guarded(path: Path, *arguments: str) -> str:
        if path.name == "energy_uj":  # root, who runs some tests, may read every file
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments)

    monkeypatch.setattr(Path, "read_text", guarded)
    found = find(["cpu"], powercap=tmp_path)
    assert not found.meters
    assert found.missing["cpu"] == f"{zone}/energy_uj: only root may read it; sudo chmod a+r {zone}/energy_uj"


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    assert "offers no RAPL counter" in find(["cpu"], powercap=tmp_path / "none").missing["cpu"]


def test_a_counter_may_stand_still() -> None:
    counter = Counter((1 << 32,), uj=1000)
    assert [counter.step_uj(9, now_s) for now_s in (0.0, 1.0, 2.0)] == [0, 0, 0]
