"""Step tables of aiconfigurator-core as a grid; what needs the package is skipped without it."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from conserve import ConfigError
from conserve.sim import tables
from conserve.sim.run import columns, simulate
from conserve.sim.workload import Conversation, TurnRecord

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="needs aiconfigurator-core"
)


class Linear:
    """Tables that can be computed by hand."""

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float:
        return 2.0 + 0.01 * (isl - prefix) + 1e-6 * (isl - prefix) * prefix

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        return 2.0 + 0.001 * gen_tokens * isl / 64


def alone(grid: dict[str, object]) -> tuple[float, float]:
    """Seconds to the first token and between tokens of a lonely prompt of 1,024 tokens with 65 of answer."""
    engine = {"role": "both", "grid": grid, "cost": {"overhead_s": 0.0}, "max_num_batched_tokens": 8192}
    task = Conversation("task-42", (TurnRecord(1024, 65),))
    turns = simulate(
        {"engines": [engine], "round_trip_s": 0}, columns([task], arrivals_s=[0.0]), seed=1
    ).turns()
    return turns["first_token_s"][0] - turns["ready_s"][0], turns["gap_mean_s"][0]


def test_steps_take_what_the_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(compile=lambda model, gpu, backend, tp_size: Linear())
    monkeypatch.setattr(
        "conserve.sim.tables.importlib.import_module", lambda name: SimpleNamespace(EngineHandle=engine)
    )
    first_s, gap_s = alone(tables.grid("any", "gpu"))
    assert first_s == pytest.approx(0.01224)
    assert gap_s == pytest.approx((2.0 + 0.001 * (1024 + 32) / 64) / 1e3, rel=1e-4)


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("conserve.sim.tables.importlib.import_module", absent)
    with pytest.raises(ConfigError, match=r"conserve-router\[tables\]"):
        tables.grid("Qwen/Qwen3-0.6B", "l40s")


@needs_package
@pytest.mark.parametrize(
    ("gpu", "prefill_ms", "decode_ms"), [("l40s", 9.2, 2.4), ("a100_sxm", 9.3, 2.0), ("h200_sxm", 4.1, 1.6)]
)
def test_the_tables_are_those_that_the_presets_were_fitted_to(
    gpu: str, prefill_ms: float, decode_ms: float
) -> None:
    first_s, gap_s = alone(tables.grid("Qwen/Qwen3-0.6B", gpu))
    assert first_s * 1e3 == pytest.approx(prefill_ms, rel=0.10)
    assert gap_s * 1e3 == pytest.approx(decode_ms, rel=0.10)


@needs_package
def test_two_gpus_are_faster_than_one_and_slower_than_half() -> None:
    one, two = (tables.grid("Qwen/Qwen3-8B", "h200_sxm", tensor_parallel=count) for count in (1, 2))
    assert 0.5 < alone(two)[0] / alone(one)[0] < 1


@needs_package
def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tables for"):
        tables.grid("Qwen/Qwen3-0.6B", "gtx_970")
