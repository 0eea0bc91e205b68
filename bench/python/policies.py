"""Which parts of `follow-kv` earn their place, and on which traces does it lose? In the simulator, against fair baselines.

Every policy stands behind the same gate and has the same GPUs. The load of a cell is a share of the highest rate at which
`collocated` is stable on that trace and fleet. Constants are chosen on the traces of `CHOSEN_ON`; the others only report.

    .venv/bin/python bench/python/policies.py SET [--traces ../shared/traces] [--seeds 10]

SET is one of the keys of `SETS`. Finished cells are kept in out/policies/ under a key that names the cell and the compiled
core, so that an interrupted run goes on where it stopped. The table goes to bench/results/policies-SET.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conserve import _core
from conserve.sim.run import columns, simulate
from conserve.sim.stats import mean_interval, paired_change, percentile
from conserve.sim.workload import bursty, conversations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conserve._core import SimWorkload
    from conserve.sim.workload import Conversation

CHOSEN_ON: Final = ("swebench", "claude-code-fresh")
OTHERS: Final = (
    "tau-bench", "mini-swe", "swe-agent", "claude-code-subagents", "claude-code-resumed", "mooncake-chat",
)  # fmt: skip
COUNTS: Final = {
    "claude-code-fresh": 80, "claude-code-resumed": 64, "claude-code-subagents": 150, "mooncake-chat": 1200,
}  # fmt: skip
"""Conversations of a run; 300 elsewhere. The search for the highest stable rate takes twice as many."""
LOWEST: Final = {"claude-code-fresh": 1e-4, "claude-code-resumed": 1e-4, "claude-code-subagents": 5e-3}
"""A rate that is stable for certain; 0.2/s elsewhere."""
RATES: Final = {("claude-code-fresh", "a40"): 0.00091}
"""Highest stable rates known from longer runs (policies-gate.json): in a short one the start and the end hide the middle."""
GATE: Final[dict[str, object]] = {
    "tail_waits": False,
    "evict_idle": True,
    "evict_idle_below": 0.1,
    "kv_events": True,
}
"""The default, see the set `gate`, and KV events; for every policy."""
LOADS: Final = (0.5, 0.7, 0.9, 1.1)
MEASURED: Final = (0.1, 0.9)
"""Of the conversations in their order of arrival, those from the first to the second share."""
LONGEST: Final = 300_000
"""Contexts that no GPU of the fleet holds are left out, under every policy."""
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Variant:
    """A policy with its options, its fleet, and what is changed of the gate and of the engines."""

    policy: str
    prefillers: int = 0
    router: dict[str, object] = field(default_factory=dict)
    engine: dict[str, object] = field(default_factory=dict)
    scenario: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One run."""

    workload: str
    preset: str
    load: float
    seed: int
    name: str


SHORTEST: Final[dict[str, object]] = {"order": {"kind": "shortest"}}
BASELINES: Final = {
    "follow-kv": Variant("follow-kv"),
    "collocated": Variant("collocated"),
    "strict 1P3D": Variant("strict", prefillers=1),
}
ABLATION: Final = BASELINES | {
    "with moves": Variant("follow-kv(move_share=0.5)"),
    "emptiest home": Variant("follow-kv(home_fuller=0)"),
    "handoffs": Variant("follow-kv(handoff=cheaper)"),
    "handoffs, nothing comes later": Variant("follow-kv(handoff=cheaper, later=0)"),
    "handoffs, emptiest home": Variant("follow-kv(handoff=cheaper, home_fuller=0)"),
    "no afresh": Variant("follow-kv(afresh_from=inf)"),
    "no thrash gate": Variant("follow-kv(thrash=inf)"),
    "shortest first": Variant("follow-kv", engine=SHORTEST),
    "collocated, shortest first": Variant("collocated", engine=SHORTEST),
    "no kv events": Variant("follow-kv", router={"kv_events": False}),
    "news 5 s old": Variant("follow-kv", router={"report_delay_s": 5.0}),
}
_ROUTERS: Final[dict[str, dict[str, object]]] = {
    "hold": {"tail_waits": True, "evict_idle": False},
    "evict": {"tail_waits": True, "evict_idle": True, "evict_idle_below": 1.0},
    "evict below 0.1": {"tail_waits": True, "evict_idle": True, "evict_idle_below": 0.1},
    "run": {"tail_waits": False, "evict_idle": False},
    "run, evict": {"tail_waits": False, "evict_idle": True, "evict_idle_below": 1.0},
    "run, evict below 0.1": {},
}
"""The last is the default."""
GATES: Final = {
    f"{policy}, {name}": Variant(policy, prefillers, router=router)
    for name, router in _ROUTERS.items()
    for policy, prefillers in (("collocated", 0), ("follow-kv", 0), ("strict", 1))
}
TUNING: Final = {"collocated": Variant("collocated"), "follow-kv": Variant("follow-kv")} | {
    options: Variant(f"follow-kv({options})")
    for options in (
        *(f"home_fuller={share}" for share in (0, 0.05, 0.2, 1)),
        *(f"stall={share}" for share in (0, 1)),
        *(f"thrash={share}" for share in (0.1, 0.5)),
        "thrash_fill=0.85",
        "afresh_from=8192",
        *(f"afresh_fuller={share}" for share in (0.05, 0.2)),
        *(f"move_share={share}" for share in (0.5, 0.75)),
        "handoff=cheaper",
        # Between equal workers these do nothing without it.
        *(f"handoff=cheaper, handoff_share={share}" for share in (0.5, 0.8, 1.0)),
        *(f"handoff=cheaper, handoff_saves_ms={saved}" for saved in (0, 100)),
        "handoff=cheaper, later=0",
        "handoff=cheaper, helper_fill=0.7",
    )
}
AGAINST: Final = {
    # Everything is compared with the first.
    "follow-kv": Variant("follow-kv"),
    "collocated": Variant("collocated"),
    **{
        f"{policy} 1P3D": Variant(policy, prefillers=1)
        for policy in ("strict", "follow-kv", "ampd(min)", "deflect", "ppd")
    },
    "follow-kv(handoff=cheaper)": Variant("follow-kv(handoff=cheaper)"),
    "follow-kv(handoff=cheaper) 1P3D": Variant("follow-kv(handoff=cheaper)", prefillers=1),
    "follow-kv(handoff=cheaper, home_fuller=0)": Variant("follow-kv(handoff=cheaper, home_fuller=0)"),
    "strict, all both": Variant("strict"),
    "collocated-spread": Variant("collocated-spread"),
    **{
        f"{policy} 1P3D": Variant(policy, prefillers=1)
        # The last is what the paper calls AMPD, carried out: a tenth of later turns goes to the prefiller by mistake.
        for policy in ("disaggregated", "oracle", "ampd(slo)", "ampd(remote_first)", "strict(toremote=0.1)")
    },
}
WIDE: Final = {
    "follow-kv": Variant("follow-kv"),
    "collocated": Variant("collocated"),
    "strict 2P6D": Variant("strict", prefillers=2),
    "follow-kv 2P6D": Variant("follow-kv", prefillers=2),
    "follow-kv(handoff=cheaper)": Variant("follow-kv(handoff=cheaper)"),
    "follow-kv(handoff=cheaper) 2P6D": Variant("follow-kv(handoff=cheaper)", prefillers=2),
    **{f"{policy} 2P6D": Variant(policy, prefillers=2) for policy in ("ppd", "ampd(slo)", "deflect")},
    "collocated-spread": Variant("collocated-spread"),
}
TAILS: Final = {
    "collocated": Variant("collocated"),
    "follow-kv": Variant("follow-kv"),
    "strict 1P3D": Variant("strict", prefillers=1),
    "one helper": Variant("follow-kv(prefillers=1)"),
    "chunk 256": Variant("collocated", engine={"max_num_batched_tokens": 256}),
    "chunk target 40 ms": Variant("follow-kv", engine={"chunk_target_s": 0.04}),
    "chunk target 60 ms": Variant("follow-kv", engine={"chunk_target_s": 0.06}),
}
SPLITS: Final = {
    "collocated": Variant("collocated"),
    "follow-kv": Variant("follow-kv"),
    **{f"helpers {k}": Variant(f"follow-kv(prefillers={k})") for k in (1, 2)},
    "strict 1P3D": Variant("strict", prefillers=1),
    "strict 2P2D": Variant("strict", prefillers=2),
}
WATTS: Final = {
    "collocated": Variant("collocated"),
    "follow-kv": Variant("follow-kv"),
    "follow-kv, all 200 W": Variant("follow-kv", engine={"power": {"cap_w": 200}}),
    "follow-kv, decodes 200 W": Variant("follow-kv", engine={"power": {"decode_cap_w": 200}}),
    "follow-kv, decodes 170 W": Variant("follow-kv", engine={"power": {"decode_cap_w": 170}}),
    "strict 1P3D": Variant("strict", prefillers=1),
    "strict 1P3D, decoders 200 W": Variant("strict", prefillers=1, scenario={"decoder_cap_w": 200}),
    "follow-kv, 3 GPUs, 1 idle": Variant("follow-kv", scenario={"off": 1}),
    "follow-kv, 3 GPUs, 1 parked": Variant("follow-kv", scenario={"off": 1, "parked": True}),
}
HOT: Final = {
    name: replace(one, engine=one.engine | {"power": {"memory_w": 225} | one.engine.get("power", {})})  # type: ignore[operator]
    for name, one in WATTS.items()
}
"""Decodes that draw as much as prompts, 300 W; with the constants of the preset they draw 205 W."""


@dataclass(frozen=True)
class Setting:
    """What all runs of a study have in common."""

    gpus: int = 4
    cv: float = 1.0
    """Of the gaps between arrivals; 1 is Poisson."""
    generated: bool = False
    """Conversations of the generators fitted to the traces, which are as many as one likes."""
    before: int = 0
    """The first seed is the one after."""


@dataclass(frozen=True)
class Study:
    """A set of variants over traces, fleets and loads."""

    variants: dict[str, Variant]
    workloads: tuple[str, ...]
    presets: tuple[str, ...] = ("a40",)
    loads: tuple[float, ...] = LOADS
    also: tuple[str, ...] = ()
    """All variants are compared with the first, and with these; with one that has prefillers, those that have some."""
    setting: Setting = Setting()


SETS: Final = {
    "gate": Study(
        GATES,
        (*CHOSEN_ON, "claude-code-resumed", "claude-code-subagents", "mooncake-chat"),
        loads=(0.5, 0.7, 1.0),
    ),
    "tuning": Study(TUNING, CHOSEN_ON, loads=(0.7, 1.1)),
    "ablation": Study(ABLATION, CHOSEN_ON, loads=(0.7, 1.0)),
    "others": Study(AGAINST, OTHERS, loads=(0.7, 0.5, 1.0), also=("follow-kv 1P3D",)),
    # Nobody looked at these before the rule was settled.
    "wide": Study(
        WIDE,
        OTHERS,
        loads=(0.5, 0.7),
        also=("follow-kv 2P6D",),
        setting=Setting(gpus=8, cv=3.0, generated=True, before=1000),
    ),
    "h200": Study(
        SPLITS,
        ("swebench", "swe-agent", "tau-bench", "mini-swe"),
        presets=("h200-8b",),
        loads=(0.5, 0.7, 0.9),
    ),
    "tails": Study(TAILS, ("swebench", "mini-swe"), loads=(0.5, 0.7)),
    "energy-hot": Study(HOT, ("swebench", "tau-bench", "mini-swe"), loads=(0.3, 0.7)),
    "energy": Study(WATTS, ("swebench", "tau-bench", "mini-swe"), loads=(0.3, 0.7)),
}


SHOWN: Final = {
    "T95": "ttfet_no_tools_p95",
    "TTFT95": "ttft_p95",
    "TBT95": "last_tbt_p95",
    "gap95": "gap_p95",
    "tok/J": "tokens_per_j",
}
"""As changes, in percent."""
AS_IS: Final = {
    "T95": "ttfet_no_tools_p95",
    "TBT95": "last_tbt_p95",
    "again": "recomputed",
    "handoffs": "handoffs",
    "moved": "moved",
}


@lru_cache(maxsize=8)
def recorded(workload: str, traces: str) -> tuple[Conversation, ...]:
    """Those that a GPU of the fleet holds; read once, for it takes longer than a run."""
    found = conversations(workload, None, seed=0, traces=Path(traces))
    return tuple(one for one in found if one.peak_context_tokens <= LONGEST)


@lru_cache(maxsize=4)
def tasks(workload: str, count: int, seed: int, traces: str | None) -> tuple[Conversation, ...]:
    """In an order of the seed; over again with new names where fewer were recorded."""
    if traces is None:
        made = conversations(workload, 2 * count, seed=seed, traces=None)
        return tuple(one for one in made if one.peak_context_tokens <= LONGEST)[:count]
    known, order = recorded(workload, traces), np.random.default_rng(seed)
    laps = -(-count // len(known))
    drawn = [(lap, int(at)) for lap in range(laps) for at in order.permutation(len(known))]
    return tuple(known[at].renamed(f"{known[at].id}.{lap}") for lap, at in drawn[:count])


@lru_cache(maxsize=512)
def arrivals(
    workload: str, rate: float, seed: int, traces: str | None, setting: Setting, *, longer: int
) -> SimWorkload:
    count = longer * COUNTS.get(workload, 300) * setting.gpus // 4
    chosen = tasks(workload, count, seed, None if setting.generated else traces)
    arrive = bursty(len(chosen), rate_per_s=rate, seed=seed, cv=setting.cv)
    return columns(chosen, arrivals_s=arrive, shared_prefix=True)


def engines(variant: Variant, preset: str, gpus: int) -> list[dict[str, object]]:
    split = variant.prefillers > 0
    made: list[dict[str, object]] = []
    for at in range(gpus - int(variant.scenario.get("off", 0))):  # type: ignore[call-overload]
        role = ("prefiller" if at < variant.prefillers else "decoder") if split else "both"
        engine = {"role": role, "preset": preset} | variant.engine
        if role == "decoder" and "decoder_cap_w" in variant.scenario:
            power = variant.engine.get("power", {})
            engine["power"] = power | {"cap_w": variant.scenario["decoder_cap_w"]}  # type: ignore[operator]
        made.append(engine)
    return made


def run(
    variant: Variant,
    workload: str,
    preset: str,
    rate: float,
    seed: int,
    traces: str | None,
    setting: Setting = Setting(),
    *,
    longer: int = 1,
) -> dict[str, Any]:
    """One simulation in numbers; times in seconds."""
    work = arrivals(workload, rate, seed, traces, setting, longer=longer)
    scenario = {
        "engines": engines(variant, preset, setting.gpus),
        "policy": {"name": variant.policy},
        "router": GATE | variant.router,
    }
    result = simulate(scenario, work, seed=seed)
    return read(result, variant)


def read(result: _core.SimResult, variant: Variant) -> dict[str, Any]:
    turns, told, used = result.turns(), result.conversations(), result.engines()
    diagnosis, counters = result.diagnosis(), result.counters()
    count = len(told["arrival_s"])
    low, high = (int(share * count) for share in MEASURED)
    arrived = np.argsort(np.asarray(told["arrival_s"]))
    measured = np.zeros(count, dtype=bool)
    measured[arrived[low:high]] = True
    whose = np.asarray(turns["conversation"])
    of = measured[whose]
    waits = np.asarray(turns["first_token_s"]) - np.asarray(turns["ready_s"])
    last = np.full(count, np.nan)
    last[whose[np.argsort(np.asarray(turns["turn"]), kind="stable")]] = np.asarray(turns["gap_mean_s"])[
        np.argsort(np.asarray(turns["turn"]), kind="stable")
    ]
    ttfet = np.asarray(told["ttfet_s"])[measured]
    phases = ("prefill_j", "mixed_j", "decode_j", "idle_j", "parked_j")
    joules = math.fsum(math.fsum(used[phase]) for phase in phases)  # type: ignore[literal-required]
    off = int(variant.scenario.get("off", 0))  # type: ignore[call-overload]
    joules += off * result.end_s * (30.0 if variant.scenario.get("parked") else 75.0)
    generated = sum(used["generated_tokens"])
    return {
        "ttfet_p50": percentile(ttfet, 50),  # type: ignore[arg-type]
        "ttfet_p95": percentile(ttfet, 95),  # type: ignore[arg-type]
        "ttfet_no_tools_p95": percentile(ttfet - np.asarray(told["tool_s"])[measured], 95),
        "ttft_p95": percentile(waits[of], 95),
        "last_tbt_p95": percentile(last[measured], 95),  # type: ignore[arg-type]
        "gap_p95": percentile(np.asarray(turns["gap_p95_s"])[of], 95),
        "tokens_per_j": generated / joules,
        "recomputed": sum(used["recomputed_tokens"]) / max(1, sum(used["prefill_tokens"])),
        "handoffs": counters["handoffs"] / count,
        "moved": (counters["placed_moved"] + counters["placed_afresh"]) / count,
        "thrash_waits": counters["waits_thrash"] / count,
        "stable": diagnosis["outcome"] == "finished" and not diagnosis["unstable"],
        "finished": diagnosis["outcome"] == "finished",
    }


def saturation(workload: str, preset: str, traces: str | None, setting: Setting) -> float:
    """The highest rate, within 15 %, at which `collocated` behind the gate is stable in two seeds of two."""
    base = Variant("collocated")

    def holds(rate: float) -> bool:
        runs = [run(base, workload, preset, rate, 100 + seed, traces, setting, longer=2) for seed in range(2)]
        # Past the knee the wait of a turn explodes before the backlog of a short run tells.
        calm = [one["stable"] and one["recomputed"] < 0.2 and one["ttft_p95"] < 20 for one in runs]
        return calm.count(True) >= 2

    low = high = LOWEST.get(workload, 0.2)
    while holds(high) and high < 1e3:
        low, high = high, high * 2
    while high / low > 1.15:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def version() -> str:
    """Names the compiled core."""
    return hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()[:12]


def key(kind: str, what: object) -> str:
    text = json.dumps([kind, what, version()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def of_saturation(workload: str, preset: str, traces: str | None, setting: Setting) -> str:
    return key("saturation", [workload, preset, COUNTS.get(workload), traces, GATE, asdict(setting)])


def rate_known(fleet: tuple[str, str], setting: Setting) -> float | None:
    return RATES.get(fleet) if setting == Setting() else None


class Kept:
    """Finished cells in a file, one a line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: dict[str, Any] = dict(json.loads(line) for line in lines)

    def add(self, name: str, value: object) -> None:
        self.rows[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")


def table(study: Study, cells: dict[Cell, dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What every variant changes, over the seeds that both have."""
    rows = []
    for workload, preset, load in product(study.workloads, study.presets, study.loads):
        runs = {
            name: {seed: cells.get(Cell(workload, preset, load, seed, name)) for seed in seeds}
            for name in study.variants
        }
        for name, own in runs.items():
            for other in against(study, name):
                both = [(one, runs[other][seed]) for seed, one in own.items() if one and runs[other][seed]]
                if both:
                    named = {
                        "workload": workload,
                        "preset": preset,
                        "load": load,
                        "variant": name,
                        "against": other,
                    }
                    row = compared(*zip(*both, strict=True))
                    if other != next(iter(runs)):
                        row = {key: value for key, value in row.items() if key not in both[0][0]}
                    rows.append(named | row)
    return sorted(
        rows,
        key=lambda row: (
            study.workloads.index(row["workload"]),
            study.presets.index(row["preset"]),
            study.loads.index(row["load"]),
            list(study.variants).index(row["against"]),
        ),
    )


def against(study: Study, name: str) -> list[str]:
    """The variants that one is compared with."""
    split = study.variants[name].prefillers > 0
    return [
        other
        for other in (next(iter(study.variants)), *study.also)
        if split or study.variants[other].prefillers == 0
    ]


def compared(own: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the stable runs and changes over the pairs that are; `None` where that is not most of them."""
    stable = [one for one in own if one["stable"]]
    pairs = [(a, b) for a, b in zip(own, base, strict=True) if a["stable"] and b["stable"]]
    row: dict[str, Any] = {"seeds": len(own), "unstable": len(own) - len(stable), "pairs": len(pairs)}
    for metric in own[0].keys() - {"stable", "finished"}:
        mean = mean_interval([one[metric] for one in stable]).mean
        row[metric] = round(mean, 5) if 2 * len(stable) > len(own) else None
    for metric in SHOWN.values():
        change = paired_change([a[metric] for a, _ in pairs], [b[metric] for _, b in pairs])
        known = 2 * len(pairs) > len(own) and change.count > 1
        row[f"{metric}_change"] = (
            [round(x, 2) for x in (change.mean, change.low, change.high)] if known else None
        )
    return dict(sorted(row.items()))


def show(rows: list[dict[str, Any]]) -> None:
    before = None
    for row in rows:
        head = (row["workload"], row["preset"], row["load"], row["against"])
        if head != before:
            print(
                f"\n{head[0]} {head[1]} load {head[2]} against {head[3]}, {row['seeds']} seeds    {' '.join(SHOWN)} | {' '.join(AS_IS)}"
            )
            before = head
        changes = [row[f"{metric}_change"] for metric in SHOWN.values()]
        marked = [
            "      - " if c is None else f"{c[0]:+7.1f}{'*' if c[1] > 0 or c[2] < 0 else ' '}"
            for c in changes
        ]
        plain = ["-" if row.get(name) is None else f"{row[name]:.4g}" for name in AS_IS.values()]
        print(f"  {row['variant']:30s} {' '.join(marked)} | {' '.join(plain)} | {row['unstable']} unstable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument(
        "--traces", default=os.environ.get("CONSERVE_TRACES", str(ROOT.parent / "shared" / "traces"))
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--kept", action="store_true", help="run nothing: a table of what a run cut short has"
    )
    chosen = parser.parse_args()
    study = SETS[chosen.set]
    setting, first = study.setting, study.setting.before + 1
    seeds = range(first, first + chosen.seeds)
    traces = chosen.traces if Path(chosen.traces).is_dir() else None
    kept = Kept(ROOT / "out" / "policies" / "cells.jsonl")
    with ProcessPoolExecutor(chosen.processes) as pool:
        asked: dict[Future[float], str] = {}
        fleets = tuple(product(study.workloads, study.presets))
        for fleet in fleets:
            name = of_saturation(*fleet, traces, setting)
            if rate_known(fleet, setting) is None and name not in kept.rows:
                asked[pool.submit(saturation, *fleet, traces, setting)] = name
        for found in as_completed(asked):
            kept.add(asked[found], found.result())
        rates = {
            fleet: rate_known(fleet, setting) or kept.rows[of_saturation(*fleet, traces, setting)]
            for fleet in fleets
        }
        for (workload, preset), rate in rates.items():
            print(f"{workload} on {setting.gpus} x {preset}: {rate:.5g} conversations/s", flush=True)
        names: dict[Cell, str] = {}
        waiting: dict[Future[dict[str, Any]], str] = {}
        # Variants outermost: a run cut short has the first ones whole.
        for (label, variant), load, seed, fleet in product(
            study.variants.items(), study.loads, seeds, fleets
        ):
            workload, preset = fleet
            rate = load * rates[fleet]
            cell = Cell(workload, preset, load, seed, label)
            what = [asdict(cell), asdict(variant), rate, COUNTS.get(workload), traces, GATE, asdict(setting)]
            name = names[cell] = key("cell", what)
            if name not in kept.rows and not chosen.kept:
                waiting[pool.submit(run, variant, workload, preset, rate, seed, traces, setting)] = name
        for count, done in enumerate(as_completed(waiting), start=1):
            kept.add(waiting[done], done.result())
            if count % 50 == 0:
                print(f"{count} of {len(waiting)}", file=sys.stderr, flush=True)
    rows = table(study, {cell: kept.rows[name] for cell, name in names.items() if name in kept.rows}, seeds)
    show(rows)
    result = {
        "command": f"bench/python/policies.py {chosen.set} --seeds {chosen.seeds}",
        "recorded": traces is not None and not setting.generated,
        "setting": asdict(setting),
        "conversations": {
            workload: COUNTS.get(workload, 300) * setting.gpus // 4 for workload in study.workloads
        },
        "gate": GATE,
        "first_is_base": next(iter(study.variants)),
        "rates_per_s": {f"{workload}, {preset}": rate for (workload, preset), rate in rates.items()},
        "rows": rows,
    }
    path = ROOT / "bench" / "results" / f"policies-{chosen.set}.json"
    lines = ",\n ".join(json.dumps(row) for row in rows)
    head = json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1)
    path.write_text(f'{head[:-2]},\n "rows": [\n {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
