"""Meters: how much energy was used since the last look, from a counter or, where there is none, from power.

Promises: whole microjoules, never negative; a counter that wraps loses nothing, one that begins again loses at most what
lies between two looks, and says so. Leaves to others: whose energy it was (`account`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from .nvml import Gpu, Nvml, NvmlError, UnsupportedError

__all__ = ["Found", "GpuMeter", "Meter", "MeterError", "RaplMeter", "find"]

Source: TypeAlias = Literal["counter", "power samples"]

POWERCAP: Final = Path("/sys/class/powercap")
# No device draws more: a counter that would have moved faster did not wrap but began again.
_MOST_W: Final = 20_000.0
# Counters are refreshed tens of times a second: a step may hold more than the time between two looks.
_SLACK_S: Final = 1.0
_WRAPS: Final = (1 << 32, 1 << 64)


class MeterError(Exception):
    """The meter could not be read: what happened, to which device."""


class Meter(Protocol):
    """One device that uses energy."""

    name: str
    source: Source

    def read_uj(self) -> int:
        """Microjoules used since the last call, 0 at the first one. Raises MeterError."""


class Counter:
    """Steps of a counter that only grows, until it wraps or begins again."""

    def __init__(self, wraps_at: Sequence[int], *, uj: int) -> None:
        self._wraps_at = wraps_at
        self._uj = uj
        self._last: int | None = None
        self._last_s = 0.0
        self.restarts = 0

    def step_uj(self, value: int, now_s: float) -> int:
        """Microjoules since the last value; `uj` of them are one of the counter's units."""
        last, last_s = self._last, self._last_s
        self._last, self._last_s = value, now_s
        if last is None:
            return 0
        if value >= last:
            return (value - last) * self._uj
        plausible_uj = _MOST_W * (now_s - last_s + _SLACK_S) * 1e6
        for wrap in self._wraps_at:
            step_uj = (value + wrap - last) * self._uj
            if last < wrap and step_uj <= plausible_uj:
                return step_uj
        self.restarts += 1
        return 0

    def forget(self) -> None:
        """What was used until the next value is not known: it is not counted."""
        self._last = None


class GpuMeter:
    """A GPU: its energy counter, or its power summed up where it has none."""

    source: Source

    def __init__(self, gpu: Gpu, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.gpu = gpu
        self.name = str(gpu) + (", all its MIG instances" if gpu.is_shared() else "")
        self._now_s = now_s
        self._counter = Counter(_WRAPS, uj=1000)
        self._power: tuple[float, int] | None = None
        self._rest_uj = 0.0
        try:
            gpu.energy_mj()
            self.source = "counter"
        except UnsupportedError:
            self.source = "power samples"
            gpu.power_mw()

    def read_uj(self) -> int:
        """Microjoules used since the last call. Raises MeterError."""
        try:
            if self.source == "counter":
                return self._counter.step_uj(self.gpu.energy_mj(), self._now_s())
            return self._integrate(self.gpu.power_mw(), self._now_s())
        except NvmlError as error:
            self._counter.forget()
            self._power = None
            raise MeterError(str(error)) from error

    def _integrate(self, power_mw: int, now_s: float) -> int:
        """The trapezoid between two power samples; what is less than a microjoule is kept for the next one."""
        before, self._power = self._power, (now_s, power_mw)
        if before is None:
            return 0
        exact_uj = (now_s - before[0]) * (before[1] + power_mw) / 2 * 1000 + self._rest_uj
        whole_uj = int(exact_uj)
        self._rest_uj = exact_uj - whole_uj
        return whole_uj


class RaplMeter:
    """The processors' packages of this machine, by the kernel's powercap files."""

    source: Source = "counter"

    def __init__(self, packages: Sequence[Path], *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._counters: dict[Path, Counter] = {}
        for package in packages:
            _number(package / "energy_uj")
            self._counters[package] = Counter((_number(package / "max_energy_range_uj"),), uj=1)
        count = len(packages)
        self.name = "processor package" if count == 1 else f"{count} processor packages"

    def read_uj(self) -> int:
        """Microjoules used since the last call. Raises MeterError."""
        now_s = self._now_s()
        steps = [
            counter.step_uj(_number(package / "energy_uj"), now_s)
            for package, counter in self._counters.items()
        ]
        return sum(steps)


@dataclass(frozen=True, slots=True)
class Found:
    """The meters there are, by zone (`gpu0`, `cpu`), and why the others are not."""

    meters: Mapping[str, Meter]
    missing: Mapping[str, str]


def find(zones: Sequence[str], *, powercap: Path = POWERCAP) -> Found:
    """The meters of these zones of this machine; never raises: what is missing is said."""
    meters: dict[str, Meter] = {}
    missing: dict[str, str] = {}
    gpus = [zone for zone in zones if zone.startswith("gpu")]
    if gpus:
        try:
            nvml = Nvml()
        except NvmlError as error:
            missing.update(dict.fromkeys(gpus, str(error)))
        else:
            for zone in gpus:
                try:
                    gpu = nvml.gpu(int(zone.removeprefix("gpu")))
                    if gpu is None:
                        missing[zone] = f"there is no GPU {zone.removeprefix('gpu')}"
                    else:
                        meters[zone] = GpuMeter(gpu)
                except NvmlError as error:
                    missing[zone] = str(error)
    if "cpu" in zones:
        try:
            meters["cpu"] = RaplMeter(_packages(powercap))
        except MeterError as error:
            missing["cpu"] = str(error)
    return Found(meters, missing)


def _packages(powercap: Path) -> list[Path]:
    """The packages, without the parts of them that are counted within."""
    try:
        zones = sorted(powercap.glob("*-rapl:*"))
        packages = [zone for zone in zones if zone.name.count(":") == 1 and (zone / "energy_uj").exists()]
    except OSError as error:
        raise MeterError(f"{powercap}: {error.strerror}") from error
    if not packages:
        raise MeterError(f"this machine offers no RAPL counter ({powercap})")
    # The same package may be offered by two interfaces of the kernel.
    mmio_too = any(not zone.name.startswith("intel-rapl-mmio") for zone in packages)
    return [zone for zone in packages if not (mmio_too and zone.name.startswith("intel-rapl-mmio"))]


def _number(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except PermissionError as error:
        raise MeterError(f"{path}: only root may read it; sudo chmod a+r {path}") from error
    except OSError as error:
        raise MeterError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise MeterError(f"{path}: holds no number") from error
