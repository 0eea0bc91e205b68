"""Full mode: every policy on every trace behind the same gate, all waits counted from arrival.

Four equal GPUs. The load of a run is a share of the rate at which the same GPUs, collocated and never short of work, end
conversations of that trace without tool time. Measured are the conversations that arrive between a fifth and nine tenths of
all; energy is that of the same span.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from conserve.sim.compare import SIMULATED, Fleet
from conserve.sim.contender import Contender
from conserve.sim.run import columns, simulate
from conserve.sim.stats import percentile
from conserve.sim.workload import conversations, poisson, traces_dir

from .alone import Alone, alone

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from conserve._core import SimResult
    from conserve.sim.workload import Conversation

__all__ = ["FLEET", "GATE", "LOADS", "SLOS", "Trial", "capacity_per_s", "first_share", "gpus", "measure"]

FLEET: Final = Fleet(1, 3, "a40")
LOADS: Final = (0.3, 0.7)
SLOS: Final = (2, 5)
"""Multiples of a conversation alone, for the time to the answer without tools and for the last turn's gaps."""

GATE: Final = {"evict_idle": True, "tail_waits": True, "evict_idle_below": 1.0}
"""For every policy: who needs room takes that of idle conversations, which are placed again."""
_LONGEST_TOKENS: Final = 300_000
"""Longer contexts do not fit on one GPU; conversations with one are left out, under every policy."""
_FROM, _TO = 0.2, 0.9
_PROBE_SEED: Final = 0
_MOST_AT_ONCE: Final = 64
_KV_TOKENS: Final = 308_448
"""Of one GPU."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy on one workload, once."""

    workload: str
    recorded: bool
    """From recorded traces, else from the generator."""
    policy: str
    rate_per_s: float
    seed: int
    conversations: int


def gpus(policy: str) -> list[dict[str, str]]:
    """The four under `policy`: split if it needs prefillers. Those of `follow-kv`, which does without, all do both."""
    needs_some = Contender.read(policy, known=SIMULATED).needs_prefillers
    return FLEET.engines(policy if needs_some else f"{policy}@both")


@lru_cache(maxsize=2)
def _tasks(workload: str, count: int, seed: int, recorded: bool) -> tuple[Conversation, ...]:
    traces = traces_dir() if recorded else None
    if recorded and traces is None:
        raise RuntimeError("recorded traces are asked for and CONSERVE_TRACES is not set")
    # Those that are too long are replaced by others, so that counts are equal.
    drawn = conversations(workload, 2 * count, seed=seed, traces=traces)
    kept = [task for task in drawn if task.peak_context_tokens <= _LONGEST_TOKENS]
    return tuple(kept[:count])


@lru_cache(maxsize=2)
def _alone(workload: str, count: int, seed: int, recorded: bool) -> Alone:
    return alone({"preset": FLEET.preset}, _tasks(workload, count, seed, recorded))


def capacity_per_s(workload: str, *, count: int, recorded: bool) -> float:
    """Conversations per second that the four GPUs end when none of them ever waits for work: load 1."""
    busy = [
        replace(task, turns=tuple(replace(turn, gap_s=0.0) for turn in task.turns))
        for task in _tasks(workload, count, _PROBE_SEED, recorded)
    ]
    scenario = {
        "engines": gpus("collocated"),
        "policy": {"name": "collocated"},
        "router": GATE,
        "closed_loop": _probe_loop(busy),
    }
    workload_columns = columns(busy, arrivals_s=[0.0] * len(busy), shared_prefix=True)
    ended = np.sort(
        np.asarray(simulate(scenario, workload_columns, seed=_PROBE_SEED).conversations()["done_s"])
    )
    low, high = int(0.2 * len(ended)), int(0.8 * len(ended))
    return float((high - low) / (ended[high] - ended[low]))


def first_share(workload: str, *, count: int, recorded: bool) -> float:
    """Percent of the prompt tokens that are not history which first turns bring: how far the structure is two-phase."""
    tasks = _tasks(workload, count, _PROBE_SEED, recorded)
    first = sum(task.turns[0].append_tokens for task in tasks)
    return 100.0 * first / sum(task.prompt_tokens_new for task in tasks)


def _probe_loop(tasks: list[Conversation]) -> int:
    """As many at once as keep four GPUs busy and evict nothing: half of the KV holds their largest contexts."""
    largest = math.fsum(task.peak_context_tokens for task in tasks) / len(tasks)
    return max(FLEET.gpus, min(_MOST_AT_ONCE, int(0.5 * FLEET.gpus * _KV_TOKENS / largest)))


def measure(trial: Trial) -> dict[str, float]:
    """What one run gives; NaN where nobody got that far."""
    key = (trial.workload, trial.conversations, trial.seed, trial.recorded)
    tasks, single = _tasks(*key), _alone(*key)
    arrivals = poisson(len(tasks), rate_per_s=trial.rate_per_s, seed=trial.seed)
    window = (arrivals[int(_FROM * len(tasks))], arrivals[int(_TO * len(tasks))])
    scenario = {
        "engines": gpus(trial.policy),
        "policy": {"name": trial.policy},
        "router": GATE,
        "energy_window_s": window,
    }
    workload = columns(tasks, arrivals_s=arrivals, shared_prefix=True)
    result = simulate(scenario, workload, seed=trial.seed)
    came = np.asarray(arrivals)
    return _measures(result, (came >= window[0]) & (came < window[1]), window, single)


def _measures(
    result: SimResult, measured: NDArray[np.bool_], window: tuple[float, float], single: Alone
) -> dict[str, float]:
    told, turns, engines = result.conversations(), result.turns(), result.engines()
    diagnosis = result.diagnosis()
    rows = np.asarray(turns["conversation"])
    inside = measured[rows]
    waits = np.asarray(turns["first_token_s"]) - np.asarray(turns["ready_s"])
    with_tools = np.asarray(told["ttfet_s"])
    own = with_tools - np.asarray(told["tool_s"])
    gaps = np.full(len(measured), math.nan)
    gaps[rows] = np.asarray(turns["gap_mean_s"])
    span = window[1] - window[0]
    window_j = math.fsum(engines["window_joules"])
    values = {
        **_spread("ttfet", with_tools[measured]),
        **_spread("ttfet_own", own[measured]),
        **_spread("ttft", waits[inside]),
        **_spread("tbt", gaps[measured]),
        "tokens_per_j": _generated(result, window) / window_j if window_j else math.nan,
        "handoffs": math.fsum(np.asarray(told["handoffs"])[measured]) / int(measured.sum()),
        "recomputed_share": sum(engines["recomputed_tokens"]) / max(1, sum(engines["prefill_tokens"])),
        "finished": float(diagnosis["outcome"] == "finished" and not diagnosis["refused"]),
        "unstable": float(diagnosis["unstable"]),
    }
    for multiple in SLOS:
        in_time = own <= multiple * single.ttfet_s
        # A last turn of one token has no gap to judge.
        smooth = ~(gaps > multiple * single.last_gap_s)
        met = (in_time & smooth)[measured]
        values[f"attained_{multiple}x"] = 100.0 * float(np.mean(met))
        values[f"goodput_{multiple}x_per_s"] = float(np.sum(met)) / span
    return values


def _spread(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    shares = (50, 95, 99)
    return {f"{name}_p{share}_s": percentile(list(values), share) for share in shares}


def _generated(result: SimResult, window: tuple[float, float]) -> float:
    """Tokens generated within the span, each turn's spread evenly from its first to its last."""
    turns = result.turns()
    first, last = np.asarray(turns["first_token_s"]), np.asarray(turns["last_token_s"])
    tokens = np.asarray(turns["output_tokens"])
    inside = np.minimum(last, window[1]) - np.maximum(first, window[0])
    length = last - first
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(length > 0, inside / length, (first >= window[0]) & (first < window[1]))
    return float(np.nansum(tokens * np.clip(share, 0.0, 1.0)))


def as_cell(trial: Trial) -> dict[str, object]:
    """The trial as JSON."""
    return {"kind": "full", **asdict(trial)}
