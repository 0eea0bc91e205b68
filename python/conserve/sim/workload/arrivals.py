"""When conversations begin: open loop (Poisson, bursty, recorded times) or closed loop.

Every process draws from its own stream of random numbers, so policies that are compared meet the same arrivals.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from conserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bursty", "poisson", "recorded"]

_ARRIVALS_STREAM = 0xA771


def poisson(count: int, *, rate_per_s: float, seed: int) -> list[float]:
    """`count` times in seconds, exponential gaps of mean `1 / rate_per_s`.

    Raises:
        ConfigError: the rate is not positive and finite.
    """
    return bursty(count, rate_per_s=rate_per_s, seed=seed, cv=1.0)


def bursty(count: int, *, rate_per_s: float, seed: int, cv: float) -> list[float]:
    """`count` times in seconds, Gamma gaps of mean `1 / rate_per_s` and coefficient of variation `cv`.

    A Gamma of shape `1 / cv^2` and scale `cv^2 / rate`; `cv` 1 is Poisson.

    Raises:
        ConfigError: the rate or `cv` is not positive and finite.
    """
    for key, value in (("rate_per_s", rate_per_s), ("cv", cv)):
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{key} is {value:g}; it must be above 0")
    stream = np.random.default_rng((_ARRIVALS_STREAM, seed))
    gaps = stream.gamma(shape=1 / cv**2, scale=cv**2 / rate_per_s, size=count)
    return [float(at) for at in np.cumsum(gaps)]


def recorded(count: int, times_s: Sequence[float], *, rate_per_s: float | None = None) -> list[float]:
    """The first `count` recorded times, from 0 on; stretched to a mean rate of `rate_per_s` if one is given.

    Raises:
        ConfigError: there are fewer than `count` times, or the rate is not positive and finite.
    """
    if len(times_s) < count:
        raise ConfigError(f"the arrival trace has {len(times_s)} times, {count} conversations need one each")
    if count == 0:
        return []
    first, last = times_s[0], times_s[count - 1]
    scale = 1.0
    if rate_per_s is not None:
        if not (math.isfinite(rate_per_s) and rate_per_s > 0):
            raise ConfigError(f"rate_per_s is {rate_per_s:g}; it must be above 0")
        scale = (count - 1) / rate_per_s / (last - first) if last > first else 1.0
    return [(at - first) * scale for at in times_s[:count]]
