"""The paper's method, with a switch for each of its seven choices that a fair comparison would not make.

| switch | on: as the paper did | off |
| --- | --- | --- |
| a | "AMPD" is ConServe with a random share of later turns declared mispredicted | the reconstruction of AMPD routes |
| b | such a turn sleeps for the prefiller's whole recorded backlog | a prefiller of the fleet really computes it |
| c | time to the answer leaves out the prefiller's queue and the wait for admission | it counts from arrival |
| d | each conversation reserves the peak of its future and keeps its KV | the product's admission; idle KV may be evicted |
| e | the prefiller's run is recorded, decoders replay it; no KV crosses | one run, real handoffs |
| f | decoders read one warmed prefix that all first prompts share | each reads its own |
| g | tokens per joule counts the whole context again each turn | generated tokens |

Everything else of the method stays: 256 conversations of five turns without tool time, one prefiller and three decoders,
thresholds of five times a conversation alone. Under d the paper's AMPD reserved turn by turn; here that makes conversations wait
for each other for ever in some seeds, so all systems reserve alike. `a` and `b` need the coupled run: a turn cannot be computed on a prefiller that is not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Final

import numpy as np

from conserve.sim.run import columns, joules, simulate
from conserve.sim.split import PARTS, parts_of, split
from conserve.sim.workload import Conversation, poisson
from conserve.sim.workload.load import read_length_table

from .alone import Alone, alone
from .full import GATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from conserve._core import SimResult

    Floats = NDArray[np.float64]

__all__ = ["BASELINES", "SWITCHES", "SYSTEMS", "Setting", "measure", "paper_conversations"]

SWITCHES: Final = "abcdefg"
SYSTEMS: Final = ("strict", "ampd-paper", "collocated", "disaggregated")
BASELINES: Final = ("ampd", "ppd")
"""What stands in for AMPD once switch a is off: the first of these that the core has."""

TURNS: Final = 5
IDLE_W: Final = 75.0
NET_S_PER_TOKEN: Final = 0.985e-6
NET_S: Final = 5.27e-3
_ROUND_TRIP_S: Final = 1e-3
SLO: Final = 5.0
_WRONG_STREAM: Final = 0x3A17
_ORDER_STREAM: Final = 0x0D3A
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One run by the paper's method."""

    system: str
    offered_per_s: float
    seed: int
    off: str = ""
    """Letters of the switches that are off."""
    error: float = 0.10
    """Share of later turns declared mispredicted under `ampd-paper`."""
    kv_read_factor: float = 0.6
    """With switch f on: what decodes read of their KV. From the drain of the paper's own run, 50 to 60 ms a step."""
    decoder_cap_w: float = 300.0
    memory_w: float = 130.0
    """Watts above idle of reading memory; nobody published them for an A40."""
    conversations: int = 256
    baseline: str = "ppd"
    """What routes as AMPD with switch a off."""

    def __post_init__(self) -> None:
        if self.system not in SYSTEMS:
            raise ValueError(f"system is {self.system!r}; choose from {', '.join(SYSTEMS)}")
        if set(self.off) - set(SWITCHES):
            raise ValueError(f"off is {self.off!r}; switches are {SWITCHES}")
        if self.is_on("e") and not (self.is_on("a") and self.is_on("b")):
            raise ValueError(f"off is {self.off!r}; a and b need e off: there is no prefiller in a replay")

    def is_on(self, switch: str) -> bool:
        """Whether the paper's choice is made."""
        return switch not in self.off


@lru_cache(maxsize=1)
def paper_conversations() -> tuple[Conversation, ...]:
    """The 256 conversations that the paper used, their first five turns, in its order."""
    with as_file(files("conserve.sim") / "data" / "swebench_bm25_first256.csv.gz") as path:
        return tuple(read_length_table(path, max_turns=TURNS))


@lru_cache(maxsize=1)
def _alone(count: int) -> Alone:
    engine = _engine("both")
    return alone(engine, paper_conversations()[:count])


def _engine(role: str, **other: object) -> dict[str, object]:
    return {
        "role": role,
        "preset": "a40-eager",
        "max_num_batched_tokens": 2944,
        "max_num_seqs": 1024,
        "watermark": 0.0,
        **other,
    }


def _power(setting: Setting, cap_w: float) -> dict[str, float]:
    return {"cap_w": cap_w, "memory_w": setting.memory_w}


@dataclass(frozen=True, slots=True)
class _Record:
    """The prefiller's run by itself."""

    sent_s: Floats
    began_s: Floats
    ended_s: Floats
    joules: float
    end_s: float


@lru_cache(maxsize=4)
def _record(count: int, offered_per_s: float, seed: int, memory_w: float) -> _Record:
    tasks = _tasks(count, seed)
    prompts = [
        replace(task, turns=(replace(task.turns[0], output_tokens=1, visible=True),)) for task in tasks
    ]
    scenario = {
        "engines": [_engine("both", power={"memory_w": memory_w})],
        "policy": {"name": "collocated"},
        "router": {**_ROUTER, "gate": False},
        "round_trip_s": 0.0,
    }
    arrivals = poisson(count, rate_per_s=offered_per_s, seed=seed)
    result = simulate(scenario, columns(prompts, arrivals_s=arrivals), seed=seed)
    turns = _by_turn(result, count, ("ready_s", "prefill_start_s", "first_token_s"), turns=1)
    return _Record(
        sent_s=turns["ready_s"][:, 0],
        began_s=turns["prefill_start_s"][:, 0],
        ended_s=turns["first_token_s"][:, 0],
        joules=joules(result),
        end_s=result.end_s,
    )


def _order(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng((_ORDER_STREAM, seed)).permutation(count)


def _tasks(count: int, seed: int) -> list[Conversation]:
    known = paper_conversations()
    return [known[int(index)] for index in _order(count, seed)]


def _wrong(count: int, share: float, seed: int) -> list[list[bool]]:
    """Each turn after the first is wrong with that chance; a larger share contains a smaller one."""
    drawn = np.random.default_rng((_WRONG_STREAM, seed)).random((count, TURNS)) < share
    drawn[:, 0] = False
    return [[bool(one) for one in row] for row in drawn]


_ROUTER: Final = {
    "low_watermark": 1.0,
    "prefill_backlog_tokens": _UNLIMITED,
    "evict_idle": False,
    "tail_waits": True,
}
"""The paper's driver: whoever fits is let in."""


def measure(setting: Setting) -> dict[str, float]:
    """What the paper reports of one run; times alone (`_x`) are multiples of the conversation alone."""
    count = setting.conversations
    record = _record(count, setting.offered_per_s, setting.seed, setting.memory_w)
    tasks = _tasks(count, setting.seed)
    flips = _wrong(count, setting.error, setting.seed) if setting.system == "ampd-paper" else None
    workload = columns(tasks, arrivals_s=list(_arrivals(setting, record)), flips=flips)
    result = simulate(_scenario(setting, record), workload, seed=setting.seed)
    return _measures(setting, record, tasks, result)


def _is_split(setting: Setting) -> bool:
    return setting.system in ("strict", "ampd-paper")


def _arrivals(setting: Setting, record: _Record) -> Floats:
    if not setting.is_on("e"):
        return record.sent_s
    return record.ended_s if _is_split(setting) else record.began_s


def _scenario(setting: Setting, record: _Record) -> dict[str, object]:
    replayed = setting.is_on("e")
    shared = setting.is_on("f") and _is_split(setting)
    cost = {"kv_read_factor": setting.kv_read_factor} if shared else {}
    # Full disaggregation keeps nothing between turns.
    keeps = setting.is_on("d") and setting.system != "disaggregated"
    retention = {"kind": "pin" if keeps else "lru"}
    slow = {"power": _power(setting, setting.decoder_cap_w), "cost": cost, "retention": retention}
    power = _power(setting, 300.0)
    if setting.system == "collocated":
        engines = [_engine("both", **{**slow, "power": power}), *(_engine("both", **slow) for _ in range(3))]
    else:
        decoders = [_engine("decoder", **slow) for _ in range(3)]
        has_prefiller = setting.system == "disaggregated" or not replayed
        engines = [_engine("prefiller", power=power), *decoders] if has_prefiller else decoders
    scenario: dict[str, object] = {
        "engines": engines,
        "policy": {"name": _policy(setting)},
        "router": _ROUTER if setting.is_on("d") else GATE,
        "kv_reservation": "oracle_peak" if setting.is_on("d") else "occupancy",
        "round_trip_s": 0.0 if replayed else _ROUND_TRIP_S,
    }
    if setting.system == "disaggregated":
        # Each turn sends its whole history through the prefiller, which keeps nothing: there is no KV to reserve.
        scenario["remote"] = {"prefiller_cache": False, "delta": False, "wait_max_s": None}
        scenario["router"] = {**_ROUTER, "gate": False}
    if _is_split(setting) and replayed:
        scenario["pd_coupling"] = "replayed"
    if setting.system == "ampd-paper":
        wait = "drain" if setting.is_on("b") else "execute"
        spans = {"started_s": list(record.sent_s), "ended_s": list(record.ended_s)}
        scenario["flip"] = {**spans, "wait": wait}
    return scenario


def _policy(setting: Setting) -> str:
    if setting.system == "ampd-paper":
        return "strict" if setting.is_on("a") else setting.baseline
    return setting.system


def _by_turn(
    result: SimResult, count: int, names: tuple[str, ...], *, turns: int = TURNS
) -> Mapping[str, Floats]:
    told = result.turns()
    rows, places = np.asarray(told["conversation"]), np.asarray(told["turn"])
    made: dict[str, Floats] = {}
    for name in names:
        grid = np.full((count, turns), math.nan)
        grid[rows, places] = np.asarray(told[name], dtype=np.float64)  # type: ignore[literal-required]
        made[name] = grid
    return made


_TURN_COLUMNS: Final = (
    "ready_s",
    "line_s",
    "engine_queue_s",
    "handoff_wait_s",
    "slept_s",
    "gap_mean_s",
    "first_token_s",
)


def _measures(
    setting: Setting, record: _Record, tasks: list[Conversation], result: SimResult
) -> dict[str, float]:
    count = len(tasks)
    told, turns = result.conversations(), _by_turn(result, count, _TURN_COLUMNS)
    single = _alone(count).reordered(_order(count, setting.seed))
    left_out, added, by_part = _corrections(setting, record, tasks, turns)
    came = np.asarray(told["arrival_s"])
    correction = added - left_out
    ttfet_s = np.asarray(told["ttfet_s"]) + correction
    ttfet = ttfet_s / single.ttfet_s
    whole = (np.asarray(told["done_s"]) - came + correction) / single.whole_s
    with np.errstate(invalid="ignore"):
        gaps = turns["gap_mean_s"][:, -1] / single.last_gap_s
    energy, uncorrected = _energy(setting, record, result)
    tokens = _tokens(setting, tasks)
    diagnosis = result.diagnosis()
    finished = diagnosis["outcome"] == "finished"
    parts = {part: (seconds + by_part[part]) / single.ttfet_s for part, seconds in parts_of(result).items()}
    spent = split(parts, ttfet)
    return {
        "ttfet_p95_s": _tail(ttfet_s),
        "ttfet_p95_x": _tail(ttfet),
        "ttfet_gmean_x": float(np.exp(np.log(ttfet).mean())) if finished else math.nan,
        "ttfet_missed": _missed(ttfet),
        "tbt_p95_x": _tail(gaps[~np.isnan(gaps)]) if finished else math.nan,
        "tbt_missed": 100.0 * float(np.mean(gaps > SLO)),
        "e2e_p95_x": _tail(whole),
        "e2e_missed": _missed(whole),
        "tokens_per_j": tokens / energy,
        "tokens_per_j_uncorrected": tokens / uncorrected,
        "decode_w": _decode_watts(result),
        "admission_p95_s": _tail(turns["line_s"][:, 0]),
        "prefiller_queue_p95_s": _tail(record.began_s - record.sent_s),
        "slept_max_s": float(np.nanmax(turns["slept_s"])),
        "served_per_s": count / (record.end_s - float(record.sent_s[0])),
        "last_prompt_s": record.end_s,
        "in_flight_max": _most_at_once(np.asarray(told["admitted_s"]), np.asarray(told["done_s"])),
        "end_s": result.end_s,
        "finished": float(finished),
        "unstable": float(diagnosis["unstable"]),
        **{f"ttfet_mean_{part}_x": spent.mean[part] for part in PARTS},
        **{f"ttfet_tail_{part}_x": spent.tail[part] for part in PARTS},
    }


def _most_at_once(began: Floats, ended: Floats) -> float:
    """The largest number of spans that overlap; one that ends where another begins does not overlap it."""
    when = np.concatenate([ended, began])
    step = np.concatenate([-np.ones(len(ended)), np.ones(len(began))])
    return float(np.cumsum(step[np.argsort(when, kind="stable")]).max())


def _tail(values: Floats) -> float:
    """The 95th percentile; NaN if somebody never got there."""
    return math.nan if np.isnan(values).any() else float(np.percentile(values, 95))


def _missed(times_x: Floats) -> float:
    """Percent above the threshold; who never got there is."""
    return 100.0 * float(np.mean(~(times_x <= SLO)))


def _corrections(
    setting: Setting, record: _Record, tasks: list[Conversation], turns: Mapping[str, Floats]
) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Seconds to leave out of the time to the answer, to add to it, and what both together change of each part of it."""
    nothing = np.zeros(len(tasks))
    left_out, added = nothing, nothing
    by_part = dict.fromkeys(PARTS, nothing)
    if setting.is_on("c"):
        left_out = turns["line_s"][:, 0]
        # The way to the router counts as the line there.
        by_part["network"] = nothing - (0.0 if setting.is_on("e") else _ROUND_TRIP_S)
        by_part["line"] = -left_out - by_part["network"]
        if _is_split(setting) and not setting.is_on("e"):
            left_out = left_out + turns["engine_queue_s"][:, 0] + turns["handoff_wait_s"][:, 0]
            by_part["engine_queue"] = -turns["engine_queue_s"][:, 0]
            by_part["handoff_wait"] = -turns["handoff_wait_s"][:, 0]
    if _is_split(setting) and setting.is_on("e"):
        prompts = np.array([task.turns[0].prompt_tokens for task in tasks], dtype=np.float64)
        began = record.began_s if setting.is_on("c") else record.sent_s
        added = record.ended_s - began + NET_S_PER_TOKEN * prompts + NET_S
        by_part["compute"] = record.ended_s - record.began_s
        by_part["transfer"] = NET_S_PER_TOKEN * prompts + NET_S
        by_part["engine_queue"] = record.began_s - began
        if setting.system == "ampd-paper":
            pushed = _pushed(record, tasks, turns)
            added = added + pushed
            by_part["engine_queue"] = by_part["engine_queue"] + pushed
    return left_out, added, by_part


def _pushed(record: _Record, tasks: list[Conversation], turns: Mapping[str, Floats]) -> Floats:
    """By how much mispredicted turns delay the first prompts that are sent to the prefiller after them."""
    late = np.zeros(len(tasks))
    slept = np.argwhere(turns["slept_s"] > 0)
    when = turns["ready_s"][slept[:, 0], slept[:, 1]]
    for at in np.argsort(when, kind="stable"):
        row, turn = slept[at]
        prompt = tasks[int(row)].turns[int(turn)].prompt_tokens
        hit_s = 14.5e-3 if prompt <= 12_000 else 0.95e-6 * prompt + 5.6e-3
        late[record.sent_s + late > when[at]] += hit_s
    return late


def _energy(setting: Setting, record: _Record, result: SimResult) -> tuple[float, float]:
    """Joules of all four GPUs to the end of the run, and without the prefiller's idle time after its last prompt."""
    spent = joules(result)
    if not (_is_split(setting) and setting.is_on("e")):
        return spent, spent
    spent += record.joules
    return spent + IDLE_W * max(0.0, result.end_s - record.end_s), spent


def _tokens(setting: Setting, tasks: list[Conversation]) -> int:
    turns = [turn for task in tasks for turn in task.turns]
    if setting.is_on("g"):
        return sum(turn.context_tokens for turn in turns)
    return sum(turn.output_tokens for turn in turns)


def _decode_watts(result: SimResult) -> float:
    engines = result.engines()
    seconds = math.fsum(engines["decode_s"])
    return math.fsum(engines["decode_j"]) / seconds if seconds else math.nan
