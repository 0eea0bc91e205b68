"""Nothing is lost or made up: the shares of each look add up to what the meter said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conserve.energy.account import Account, Share, Zone, split

SECONDS = st.floats(0, 1e6) | st.just(0.0)


@given(
    energy_uj=st.integers(0, 10**15),
    span_s=st.floats(0, 1e6),
    work=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=9),
    idle_w=st.none() | st.floats(0, 1e4),
)
def test_shares_add_up_to_the_counter_exactly(
    energy_uj: int, span_s: float, work: list[tuple[float, float]], idle_w: float | None
) -> None:
    shares = split(energy_uj, span_s, {f"d{n}": pair for n, pair in enumerate(work)}, idle_w=idle_w)
    parts = [part for each in shares.values() for part in (each.prefill_uj, each.decode_uj, each.idle_uj)]
    assert sum(parts) == energy_uj
    assert min(parts) >= 0


def test_a_zone_and_its_workers_agree_after_many_looks() -> None:
    account = Account({"gpu0": Zone(("p0", "d0"))}, {"p0": "fast", "d0": "slow"})
    for look in range(1000):
        work = {"p0": (0.013 * (look % 3), 0.0), "d0": (0.001, 0.07 * (look % 5))}
        account.book("gpu0", 20_000_003 + look, 0.2, work)
    total = sum(usage.total_uj for usage in account.workers.values())
    assert total == account.zones["gpu0"].energy_uj
    assert account.of_tier("fast").total_uj + account.of_tier("slow").total_uj == total
    assert account.of_fleet().total_uj == total


def test_time_without_turns_is_paid_at_the_idle_power() -> None:
    # 0.25 s of one turn in 1 s: 0.75 s at 80 W are 60 J, the turn has the other 140 J.
    shares = split(200_000_000, 1.0, {"d0": (0.0, 0.25)}, idle_w=80.0)
    assert shares == {"d0": Share(0, 140_000_000, 60_000_000)}


def test_without_a_known_idle_power_time_is_shared_evenly() -> None:
    assert split(200, 1.0, {"d0": (0.25, 0.0)}, idle_w=None) == {"d0": Share(50, 0, 150)}


def test_workers_on_one_gpu_share_it_by_their_turn_seconds() -> None:
    shares = split(1000, 1.0, {"p0": (1.0, 0.0), "d0": (0.5, 2.5)}, idle_w=50.0)
    assert shares == {"p0": Share(250, 0, 0), "d0": Share(125, 625, 0)}, "4 turn-seconds, no idle time"


def test_an_idle_gpu_is_shared_evenly_and_teaches_its_idle_power() -> None:
    account = Account({"gpu0": Zone(("p0", "d0"))}, {"p0": "a", "d0": "a"})
    account.book("gpu0", 75_000_001, 1.0, {})
    assert account.workers["p0"].idle_uj + account.workers["d0"].idle_uj == 75_000_001
    assert abs(account.workers["p0"].idle_uj - account.workers["d0"].idle_uj) == 1
    assert account.zones["gpu0"].idle_w == pytest.approx(75.000001)
    account.book("gpu0", 200_000_000, 1.0, {"p0": (1.0, 0.0)})
    assert account.zones["gpu0"].idle_w == pytest.approx(75.000001), "a busy look teaches nothing"


def test_the_idle_power_never_takes_more_than_was_used() -> None:
    assert split(10, 1.0, {"d0": (0.0, 0.5)}, idle_w=1e9) == {"d0": Share(0, 0, 10)}
