"""The statistics of repeated runs against values from tables and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conserve.sim.stats import convexity, is_stable, mean_interval, paired_change, percentile, t_quantile


@pytest.mark.parametrize(
    ("freedom", "table"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)],
)
def test_t_quantile_agrees_with_the_table(freedom: int, table: float) -> None:
    assert t_quantile(freedom) == pytest.approx(table, rel=0.005)


def test_an_interval_by_hand() -> None:
    one = mean_interval([1.0, 2.0, 3.0])
    # Deviation 1, standard error 1 / sqrt(3), t(2) = 4.303: half width 2.484.
    assert (one.mean, one.low, one.high) == pytest.approx((2.0, -0.484, 4.484), abs=0.002)
    assert not one.excludes_zero
    assert mean_interval([5.0, 5.1, 4.9]).excludes_zero
    assert mean_interval([1.0]).high == math.inf, "one seed says nothing of its spread"


def test_pairs_cancel_what_seeds_share() -> None:
    change = paired_change([10.0, 20.0, 40.0], [20.0, 40.0, 80.0])
    assert (change.mean, change.low, change.high) == pytest.approx((-50, -50, -50))
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_change([1.0], [1.0, 2.0])


def test_percentile_ignores_what_never_happened() -> None:
    assert percentile([1.0, math.nan, 3.0], 50) == 2.0
    assert math.isnan(percentile([], 95))


def test_a_line_is_a_line_and_a_parabola_is_not() -> None:
    x = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    noise = [0.01, -0.01, 0.0, 0.01, -0.01, 0.0]
    fit, bend = convexity(x, [2 * one + extra for one, extra in zip(x, noise, strict=True)])
    assert fit > 0.99
    assert not bend.excludes_zero
    fit, bend = convexity(x, [one**2 + extra / 100 for one, extra in zip(x, noise, strict=True)])
    assert bend.low > 0, "convex beyond doubt"


def test_a_queue_that_keeps_up_is_stable_and_one_that_does_not_is_not() -> None:
    arrivals = [float(n) for n in range(400)]
    assert is_stable(arrivals, [at + 30 for at in arrivals])
    # Served at 0.7 a second: of 200 arrivals in the second half 60 stay behind.
    assert not is_stable(arrivals, [(n + 1) / 0.7 for n in range(400)])
    assert not is_stable(arrivals, [*(at + 1 for at in arrivals[:-1]), math.nan]), (
        "a conversation never ended"
    )


def test_chance_alone_is_not_called_unstable() -> None:
    stream = np.random.default_rng(11)
    unstable = 0
    for _ in range(200):
        arrivals = np.cumsum(stream.exponential(1.0, 300))
        done = np.empty(300)
        free = 0.0
        for index, at in enumerate(arrivals):
            free = max(free, at) + 0.7
            done[index] = free
        unstable += not is_stable(list(arrivals), list(done))
    assert unstable == 0, "an M/D/1 queue at load 0.7 settles"
