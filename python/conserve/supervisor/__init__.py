"""Worker processes of one machine: start them together, know when they are ready, leave none behind."""

from __future__ import annotations

from .fleet import Fleet
from .process import ProcessExitedError, ProcessNotReadyError, SupervisorError, WorkerProcess
from .spec import ProcessSpec

__all__ = [
    "Fleet",
    "ProcessExitedError",
    "ProcessNotReadyError",
    "ProcessSpec",
    "SupervisorError",
    "WorkerProcess",
]
