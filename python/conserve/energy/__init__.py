"""Joules: counters of GPUs and processors, what the workers' phases used of them, and caps on their power."""

from __future__ import annotations

from .account import Account, Usage, split
from .meter import Meter, MeterError
from .power import Cap, PowerError, PowerLimits
from .sampler import Sampler

__all__ = ["Account", "Cap", "Meter", "MeterError", "PowerError", "PowerLimits", "Sampler", "Usage", "split"]
