"""Where does `follow-kv(roles=auto)` lose against `follow-kv` as it stands? In the simulator, over the settings of policies.py.

The rates are those that the sets `others`, `h200` and `wide` found, read from their results. Conversations arrive for so long
that the router has had time for several changes. Runs are kept in out/roles/ under the compiled core, so that one cut short goes on; `--kept` runs
nothing. The table goes to bench/results/policies-auto.json.

    .venv/bin/python -m bench.python.roles_everywhere [--traces ../shared/traces] [--seeds 3] [--kept]
"""

from __future__ import annotations

import argparse
import json
import math
import os
from itertools import product
from pathlib import Path
from typing import Any, Final

from bench.python.policies import (
    COUNTS,
    GATE,
    ROOT,
    SETS,
    SHOWN,
    Kept,
    Variant,
    arrivals,
    engines,
    read,
    version,
)
from conserve.sim.run import simulate
from conserve.sim.stats import paired_change

POLICIES: Final = {"usual": Variant("follow-kv"), "auto": Variant("follow-kv(roles=auto)")}
LOADS: Final = (0.5, 0.7)
LEAST_S: Final = 1_200.0
"""Conversations arrive for at least so long; a change follows from three minutes."""


def rates(name: str) -> dict[str, float]:
    """Conversations a second at load 1, by workload and preset."""
    text = (ROOT / "bench" / "results" / f"policies-{name}.json").read_text()
    found: dict[str, float] = json.loads(text)["rates_per_s"]
    return found


def run(
    name: str, fleet: str, load: float, variant: Variant, seed: int, traces: str | None
) -> dict[str, Any]:
    """One simulation in numbers, with the changes of roles as times and numbers of helpers."""
    workload, preset = fleet.split(", ")
    setting, rate = SETS[name].setting, load * rates(name)[fleet]
    usual_s = COUNTS.get(workload, 300) * setting.gpus / 4 / rate
    known = None if setting.generated else traces
    longer = max(1, math.ceil(LEAST_S / usual_s))
    work = arrivals(workload, rate, setting.before + seed, known, setting, longer=longer)
    scenario = {
        "engines": engines(variant, preset, setting.gpus),
        "policy": {"name": variant.policy},
        "router": GATE,
        "events": variant is POLICIES["auto"],
    }
    result = simulate(scenario, work, seed=setting.before + seed)
    changes = [
        [round(at), int(what.split("helpers: ")[1].split()[0].rstrip(",}"))]
        for at, what in result.events
        if what.startswith("RolesChanged")
    ]
    numbers: dict[str, Any] = read(result, variant)
    return numbers | {"changes": changes}


def row(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What `auto` changes, in percent, over the seeds that are stable under both."""
    pairs = [
        (auto, usual)
        for auto, usual in zip(runs["auto"], runs["usual"], strict=True)
        if auto["stable"] and usual["stable"]
    ]
    found: dict[str, Any] = {
        "seeds": len(runs["auto"]),
        "unstable": {name: sum(not one["stable"] for one in own) for name, own in runs.items()},
        "changes": [one["changes"] for one in runs["auto"]],
    }
    for metric in SHOWN.values():
        change = paired_change([a[metric] for a, _ in pairs], [b[metric] for _, b in pairs])
        known = 2 * len(pairs) > found["seeds"] and change.count > 1
        found[f"{metric}_change"] = (
            [round(x, 2) for x in (change.mean, change.low, change.high)] if known else None
        )
    return found


def main() -> None:
    """Run all settings, the seeds outermost; print and write what has all of its seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--traces", default=os.environ.get("CONSERVE_TRACES", str(ROOT.parent / "shared" / "traces"))
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="run nothing: a table of what there is")
    options = parser.parse_args()
    traces = options.traces if Path(options.traces).is_dir() else None
    kept = Kept(ROOT / "out" / "roles" / f"{version()}.jsonl")
    cells = [
        (name, fleet, load)
        for name, load in product(("h200", "others", "wide"), LOADS)
        for fleet in rates(name)
    ]
    seeds = range(1, options.seeds + 1)
    for seed, cell, policy in product(seeds, cells, POLICIES):
        key = json.dumps([*cell, policy, seed])
        if key not in kept.rows and not options.kept:
            name, fleet, load = cell
            kept.add(key, run(name, fleet, load, POLICIES[policy], seed, traces))
    rows = []
    for cell in cells:
        runs = {
            policy: [kept.rows.get(json.dumps([*cell, policy, seed])) for seed in seeds]
            for policy in POLICIES
        }
        done = [all(pair) for pair in zip(*runs.values(), strict=True)].count(True)
        if done < 2:
            continue
        whole = {policy: [one for one in own[:done] if one] for policy, own in runs.items()}
        rows.append(dict(zip(("set", "fleet", "load"), cell, strict=True)) | row(whole))
        print(json.dumps(rows[-1]), flush=True)
    head = {
        "command": f"-m bench.python.roles_everywhere --seeds {options.seeds}",
        "recorded": traces is not None,
        "least_s": LEAST_S,
        "gate": GATE,
        "against": "follow-kv",
    }
    lines = ",\n ".join(json.dumps(one) for one in rows)
    path = ROOT / "bench" / "results" / "policies-auto.json"
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
