"""A router's work and a GPU's counter become joules of workers, tiers and conversations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conserve import Decoder, ManualClock, Prefiller, Router
from conserve.energy.meter import find
from conserve.energy.sampler import Sampler
from conserve.settings import Settings
from tests.support.nvml import GPU_IS_LOST, StandIn

Gpus = Callable[[int], StandIn]


class Bench:
    """A prefiller on GPU 0 and a decoder on GPU 1, of tiers `fast` and `slow`, and time that the test sets."""

    def __init__(self, machine: StandIn, *, shared: bool = False) -> None:
        self.machine = machine
        self.clock = ManualClock()
        self.router = Router(
            [Prefiller("http://p0:1", name="p0")],
            [Decoder("http://d0:1", name="d0", kv_blocks=1000)],
            clock=self.clock,
        )
        zones = {"gpu0": ("p0", "d0")} if shared else {"gpu0": ("p0",), "gpu1": ("d0",)}
        self.sampler = Sampler(
            self.router,
            zones,
            {"p0": "fast", "d0": "slow"},
            find(list(zones)),
            now_s=lambda: self.router.now_s,
        )
        self.sampler.look()

    def after(self, seconds: float, *joules: int) -> None:
        self.clock.advance(seconds)
        for index, used in enumerate(joules):
            self.machine.gpu(index).energy_mj += used * 1000
        self.sampler.look()


def test_joules_go_to_the_phase_the_worker_was_in_and_add_up_to_the_counters(gpus: Gpus) -> None:
    bench = Bench(gpus(2))
    bench.after(1, 70, 60)
    with bench.router.turn("task-42", prompt_tokens=160) as turn:
        bench.after(1, 300, 60)
        turn.prefilled(160)
        bench.after(1, 70, 200)
        turn.first_token()
        turn.finish(output_tokens=40, cached_tokens=160)
    bench.after(1, 70, 60)
    told = bench.sampler.told()
    assert told["workers"]["p0"]["prefill_j"] == 300
    assert told["workers"]["p0"]["idle_j"] == 210
    assert told["workers"]["d0"]["decode_j"] == 200
    assert told["workers"]["d0"]["idle_j"] == 180
    assert told["fleet"]["energy_j"] == sum(zone["energy_j"] for zone in told["zones"].values()) == 890
    assert told["tiers"]["fast"]["prompt_tokens"] == 160
    assert told["tiers"]["slow"]["j_per_token"] == pytest.approx(380 / 40)
    assert told["tiers"]["slow"]["tokens_per_j"] == pytest.approx(40 / 380)


def test_a_conversation_is_charged_what_its_turns_used(gpus: Gpus) -> None:
    bench = Bench(gpus(2))
    with bench.router.turn("task-42", prompt_tokens=160) as turn:
        bench.after(1, 300, 60)
        turn.prefilled(160)
        with bench.router.turn("task-43", prompt_tokens=160) as other:
            other.prefilled(160)
            bench.after(1, 70, 200)
            other.finish(output_tokens=10, cached_tokens=160)
        turn.finish(output_tokens=40, cached_tokens=160)
    first, second = bench.router.conversation("task-42"), bench.router.conversation("task-43")
    assert first is not None
    assert second is not None
    assert first.energy_j == pytest.approx(300 + 100), "its prefill, and half of the decoder's second"
    assert second.energy_j == pytest.approx(100)
    assert (first.tokens, second.tokens) == (200, 170)


def test_what_ran_between_two_looks_is_charged_to_whoever_runs_next(gpus: Gpus) -> None:
    bench = Bench(gpus(2))
    with bench.router.turn("task-42", prompt_tokens=160) as turn:
        bench.clock.advance(1)
        turn.prefilled(160)
        turn.finish()
    bench.after(0, 300, 0)
    with bench.router.turn("task-43", prompt_tokens=160) as turn:
        bench.after(1, 200, 0)
        turn.prefilled(160)
        turn.finish()
    second = bench.router.conversation("task-43")
    assert second is not None
    assert second.energy_j == pytest.approx(500), "none is lost: the first was over before it was measured"
    assert bench.sampler.told()["workers"]["p0"]["prefill_j"] == 500


def test_workers_on_one_gpu_share_its_joules(gpus: Gpus) -> None:
    bench = Bench(gpus(1), shared=True)
    with bench.router.turn("task-42", prompt_tokens=160) as turn:
        bench.clock.advance(1)
        turn.prefilled(160)
        bench.after(3, 400)
        turn.finish(output_tokens=4)
    workers = bench.sampler.told()["workers"]
    assert (workers["p0"]["prefill_j"], workers["d0"]["decode_j"]) == (100, 300), "1 s and 3 s of 4 s"


def test_a_lost_gpu_stops_only_its_own_zone(gpus: Gpus) -> None:
    machine = gpus(2)
    bench = Bench(machine)
    machine.gpu(0).energy_rc = GPU_IS_LOST
    bench.after(1, 70, 60)
    zones = bench.sampler.told()["zones"]
    assert "does not answer" in zones["gpu0"]["error"]
    assert (zones["gpu0"]["power_w"], zones["gpu1"]["power_w"]) == (None, 60)
    machine.gpu(0).energy_rc = 0
    bench.after(1, 70, 60)
    bench.after(1, 70, 60)
    assert bench.sampler.told()["zones"]["gpu0"] | {"idle_w": 0} == zones["gpu0"] | {
        "energy_j": 70, "power_w": 70, "error": None, "idle_w": 0,
    }  # fmt: skip


def test_metrics_say_the_same(gpus: Gpus) -> None:
    bench = Bench(gpus(2))
    bench.after(1, 70, 60)
    lines = bench.sampler.exposition().splitlines()
    assert 'conserve_energy_joules_total{worker="p0",tier="fast",phase="idle"} 70.0' in lines
    assert 'conserve_energy_counter_joules_total{zone="gpu1",source="counter"} 60.0' in lines
    assert 'conserve_power_watts{zone="gpu1"} 60.0' in lines
    assert not any(line.startswith("conserve_joules_per_token{") for line in lines), "no token yet"


def test_without_a_counter_everything_works_and_says_so(gpus: Gpus) -> None:
    gpus(0)
    settings = Settings(
        prefillers=["http://p0:1,gpus=0,tier=fast"], decoders=["http://d0:1,gpus=1+2", "http://far:1"]
    )
    sampler = Sampler.of(Router(), settings)
    sampler.start()
    sampler.stop()
    told = sampler.told()
    assert told["no_counter"] == {f"gpu{index}": f"there is no GPU {index}" for index in range(3)}
    assert told["zones"] == told["workers"] == {}
    assert "conserve_energy_joules_total{" not in sampler.exposition()


def test_settings_name_the_gpus_of_each_worker(gpus: Gpus) -> None:
    machine = gpus(3)
    settings = Settings(prefillers=["http://p0:1,gpus=0,tier=fast"], decoders=["http://d0:1,gpus=1+2,name=x"])
    sampler = Sampler.of(Router(), settings)
    sampler.start()
    machine.gpu(2).energy_mj += 5_000
    sampler.stop()
    told = sampler.told()
    assert {key: zone["workers"] for key, zone in told["zones"].items()} == {
        "gpu0": ["p0"], "gpu1": ["x"], "gpu2": ["x"],
    }  # fmt: skip
    assert told["workers"]["x"]["energy_j"] == 5
    assert told["workers"]["p0"]["tier"] == "fast"


@pytest.mark.parametrize("text", ["gpus=", "gpus=a", "gpus=1,2", "gpus=1+", "gpus=-1"])
def test_gpus_that_are_no_indices_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"gpus takes|is no option"):
        Settings(decoders=[f"http://d0:1,{text}"])
