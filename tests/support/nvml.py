"""A stand-in for NVIDIA's library, built with the machine's C compiler: GPUs whose counters the test sets."""

from __future__ import annotations

import ctypes
import functools
import mmap
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
VARIABLE = "CONSERVE_STAND_IN_NVML"

NO_PERMISSION, NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST = 4, 3, 9, 15


class StandInGpu(ctypes.Structure):
    """One GPU of the file; `*_rc` is what the function answers, `sets` counts changes of the limit."""

    _fields_ = [
        ("energy_mj", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("power_mw", "limit_mw", "least_mw", "most_mw")),
        *((name, ctypes.c_int32) for name in ("energy_rc", "power_rc", "limit_rc", "set_rc", "mig_rc")),
        *((name, ctypes.c_uint32) for name in ("mig", "sets", "pad")),
        ("name", ctypes.c_char * 64),
        ("uuid", ctypes.c_char * 64),
    ]
    energy_mj: int
    power_mw: int
    limit_mw: int
    least_mw: int
    most_mw: int
    energy_rc: int
    power_rc: int
    limit_rc: int
    set_rc: int
    mig_rc: int
    mig: int
    sets: int
    name: bytes
    uuid: bytes


class _Machine(ctypes.Structure):
    _fields_ = [
        ("init_rc", ctypes.c_int32),
        ("count", ctypes.c_uint32),
        ("gpus", StandInGpu * 4),
    ]


class StandIn:
    """The machine in the file: what the library answers from now on, in every process that was told of the file."""

    def __init__(self, path: Path, *, gpus: int) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Machine)))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), ctypes.sizeof(_Machine))
        self.machine: Any = _Machine.from_buffer(self._mapped)
        self.machine.count = gpus
        for index, gpu in enumerate(self.machine.gpus):
            gpu.limit_mw, gpu.least_mw, gpu.most_mw, gpu.power_mw = 300_000, 100_000, 300_000, 75_000
            gpu.name, gpu.uuid = b"NVIDIA A40", f"GPU-{index:08d}".encode()

    def gpu(self, index: int) -> StandInGpu:
        found: StandInGpu = self.machine.gpus[index]
        return found


@functools.cache
def library() -> Path:
    """The built library, in a folder of its own that a process may be given as LD_LIBRARY_PATH."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libnvidia-ml.so.1 cannot be built")
    built = Path(tempfile.mkdtemp(prefix="conserve-nvml-")) / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", str(built), str(SOURCE)], check=True)
    return built


@functools.cache
def load() -> ctypes.CDLL:
    """Load it here. nvidia-ml-py asks for it by its name, and the loader knows that name from now on."""
    return ctypes.CDLL(str(library()))
