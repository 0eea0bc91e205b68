"""NVIDIA's management library, as far as energy and power limits go, through nvidia-ml-py.

Promises: what it raises is an NvmlError that says what happened, to which GPU, and what to do. Units are the library's:
millijoules and milliwatts. GPUs are numbered by their place on the PCI bus, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["Gpu", "GpuLostError", "Nvml", "NvmlError", "PermissionDeniedError", "UnsupportedError"]


class NvmlError(Exception):
    """The library refused or is not there."""


class UnsupportedError(NvmlError):
    """The GPU does not offer this."""


class PermissionDeniedError(NvmlError):
    """This user may not do this."""


class GpuLostError(NvmlError):
    """The GPU has fallen off the bus, or needs a reset."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    index: int
    name: str
    uuid: str
    _nvml: Nvml
    _handle: Any

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"

    def energy_mj(self) -> int:
        """Energy used since the driver was loaded. UnsupportedError where there is no counter."""
        return int(self._ask("nvmlDeviceGetTotalEnergyConsumption"))

    def power_mw(self) -> int:
        """Power drawn now."""
        return int(self._ask("nvmlDeviceGetPowerUsage"))

    def limit_mw(self) -> int:
        """The power limit that is set."""
        return int(self._ask("nvmlDeviceGetPowerManagementLimit"))

    def limits_mw(self) -> tuple[int, int]:
        """The lowest and the highest limit that may be set."""
        least, most = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        return int(least), int(most)

    def set_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit; only root may."""
        self._ask("nvmlDeviceSetPowerManagementLimit", limit_mw)

    def is_shared(self) -> bool:
        """Whether it is cut into MIG instances, which have no counter of their own."""
        try:
            current, _ = self._ask("nvmlDeviceGetMigMode")
        except NvmlError:
            return False
        return bool(current)

    def _ask(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - the library has no types
        return self._nvml.ask(str(self), name, self._handle, *arguments)


class Nvml:
    """The library, opened. Raises NvmlError where it is not there."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ModuleNotFoundError:
            raise NvmlError("nvidia-ml-py is not installed: pip install 'conserve-router[energy]'") from None
        self._lib: ModuleType = pynvml
        self.ask("NVML", "nvmlInit")

    def close(self) -> None:
        """Let go of the library."""
        self.ask("NVML", "nvmlShutdown")

    def gpus(self) -> list[Gpu]:
        """Every GPU that answers."""
        found = (self.gpu(index) for index in range(self.ask("NVML", "nvmlDeviceGetCount")))
        return [gpu for gpu in found if gpu is not None]

    def gpu(self, index: int) -> Gpu | None:
        """The GPU with this index; None if there is none."""
        if not 0 <= index < self.ask("NVML", "nvmlDeviceGetCount"):
            return None
        who = f"GPU {index}"
        handle = self.ask(who, "nvmlDeviceGetHandleByIndex", index)
        name = self.ask(who, "nvmlDeviceGetName", handle)
        return Gpu(index, name, self.ask(who, "nvmlDeviceGetUUID", handle), self, handle)

    def ask(self, who: str, name: str, *arguments: object) -> Any:  # noqa: ANN401 - the library has no types
        """Call a function of the library about `who`; raises NvmlError."""
        function: Callable[..., Any] = getattr(self._lib, name)
        try:
            return function(*arguments)
        except self._lib.NVMLError as error:
            raise self._named(error.value, who, str(error)) from error

    def _named(self, code: int, who: str, text: str) -> NvmlError:
        lib = self._lib
        if code in (lib.NVML_ERROR_LIBRARY_NOT_FOUND, lib.NVML_ERROR_DRIVER_NOT_LOADED):
            return NvmlError(f"there is no NVIDIA driver ({text})")
        if code == lib.NVML_ERROR_NO_PERMISSION:
            return PermissionDeniedError(f"{who}: this user has no permission ({text})")
        if code in (lib.NVML_ERROR_GPU_IS_LOST, lib.NVML_ERROR_RESET_REQUIRED, lib.NVML_ERROR_UNKNOWN):
            return GpuLostError(f"{who} does not answer ({text})")
        if code in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND):
            return UnsupportedError(f"{who}: not supported ({text})")
        return NvmlError(f"{who}: {text}")
