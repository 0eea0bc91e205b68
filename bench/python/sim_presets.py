"""Which constants of the simulator's closed form fit the published kernel times best?

The times are aiconfigurator's for vLLM in bf16 (SIMULATOR, section 4): four prefills and four decode steps for each GPU and
model. Four constants (seconds a token, seconds a pair of query and key, bytes per second, kernel seconds of a step) are
fitted by least squares of the relative errors; the linear layers cost the larger of compute and reading the weights. The
result is what `src/sim/preset.rs` holds.

usage: python bench/python/sim_presets.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# New tokens and tokens before them; sequences and tokens of context of each.
NEW, PAST = np.array([1024.0, 4096.0, 8192.0, 2048.0]), np.array([0.0, 0.0, 0.0, 16384.0])
BATCH, CONTEXT = np.array([1.0, 32.0, 32.0, 64.0]), np.array([1024.0, 4096.0, 8192.0, 8192.0])


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of the four prefills and the four decode steps."""

    name: str
    prefill_ms: tuple[float, float, float, float]
    decode_ms: tuple[float, float, float, float]
    kv_bytes_per_token: float
    weight_bytes: float


SMALL, LARGE = (114_688.0, 1.19e9), (147_456.0, 16.4e9)
TABLES = (
    Measured("l40s", (9.2, 34.9, 86.0, 54.0), (2.4, 25.4, 48.7, 85.9), *SMALL),
    Measured("a100", (9.3, 36.7, 85.5, 60.0), (2.0, 13.4, 24.5, 42.1), *SMALL),
    Measured("h200", (4.1, 12.1, 27.5, 17.7), (1.6, 5.2, 8.1, 14.8), *SMALL),
    Measured("l40s-8b", (72.0, 320.0, 729.0, 246.0), (21.7, 51.5, 84.0, 132.0), *LARGE),
    Measured("a100-8b", (66.0, 261.0, 568.0, 237.0), (12.0, 27.1, 41.4, 64.7), *LARGE),
)


def seconds(constants: Array, of: Measured) -> Array:
    """The eight times that the closed form gives."""
    token, pair, rate, kernel = constants
    weights = of.weight_bytes / rate
    prefill = kernel + np.maximum(token * NEW, weights) + pair * NEW * (PAST + NEW / 2)
    context = of.kv_bytes_per_token * BATCH * CONTEXT / rate
    decode = kernel + np.maximum(token * BATCH, weights) + context
    return np.concatenate([prefill, decode])


def errors(constants: Array, of: Measured) -> Array:
    """The relative error of each."""
    measured = np.array(of.prefill_ms + of.decode_ms) / 1e3
    return seconds(constants, of) / measured - 1.0


def fit(of: Measured) -> Array:
    """A random walk downhill in the logarithms; the step shrinks, the seed is fixed."""
    stream, step = np.random.default_rng(0), 0.5
    best = np.array([7e-6 if of.weight_bytes < 2e9 else 7e-5, 1e-9, 1e12, 5e-4])
    least = float(np.sum(errors(best, of) ** 2))
    for turn in range(60_000):
        tried = best * np.exp(stream.normal(0.0, step, 4))
        loss = float(np.sum(errors(tried, of) ** 2))
        if loss < least:
            best, least = tried, loss
        if turn % 2_000 == 1_999:
            step *= 0.8
    return best


def main() -> None:
    """One line for each GPU and model."""
    for of in TABLES:
        token, pair, rate, kernel = best = fit(of)
        worst = np.abs(errors(best, of)).max()
        print(
            f"{of.name:8}  {token * 1e6:6.3g} us/token  {pair * 1e9:6.3g} ns/pair  {rate / 1e9:6.4g} GB/s  "
            f"{kernel * 1e3:7.3g} ms/step  largest error {worst:.1%}"
        )


if __name__ == "__main__":
    main()
