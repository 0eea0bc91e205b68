"""Does `follow-kv(roles=auto)` find the number of prefillers that is best for a fleet and a rate? In the simulator.

Four workers that do both; conversations that arrive after the first ten minutes count, when the router has had three changes.
Each fixed number of prefillers is run over the same arrivals. The table goes to bench/results/policies-roles.json.

    .venv/bin/python bench/python/roles.py [--traces ../shared/traces] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from conserve.sim.run import columns, simulate
from conserve.sim.stats import percentile
from conserve.sim.workload import conversations, poisson

if TYPE_CHECKING:
    from conserve._core import SimResult

POLICIES: Final = {
    **{f"{k} prefillers": f"follow-kv(prefillers={k})" for k in range(3)},
    "auto": "follow-kv(roles=auto)",
}
# Conversations a second; the share of saturation differs from one fleet to the next.
CELLS: Final = (
    ("swebench", "h200-8b", 1.0),
    ("swebench", "h200-8b", 2.0),
    ("swe-agent", "h200-8b", 1.2),
    ("swebench", "a40", 0.7),
)
SPAN_S: Final = 1_200.0
SETTLED_S: Final = 600.0
ROUTER: Final = {"tail_waits": False, "evict_idle": True, "evict_idle_below": 0.1, "kv_events": True}
LINKS: Final = {"h200-8b": {"bytes_per_s": 50e9}, "a40": {"bytes_per_s": 10e9}}
ROOT: Final = Path(__file__).parents[2]


def run(
    workload: str, preset: str, rate: float, policy: str, seed: int, traces: Path | None
) -> dict[str, Any]:
    """One simulation; times in seconds."""
    count = int(rate * SPAN_S)
    tasks = tuple(conversations(workload, count, seed=seed, traces=traces))
    work = columns(tasks, arrivals_s=poisson(count, rate_per_s=rate, seed=seed), shared_prefix=True)
    scenario = {
        "engines": [{"role": "both", "preset": preset}] * 4,
        "policy": {"name": policy},
        "router": ROUTER,
        "link": LINKS[preset],
        "events": True,
    }
    return read(simulate(scenario, work, seed=seed))


def read(result: SimResult) -> dict[str, Any]:
    """What the conversations met that arrived when the roles had settled."""
    turns, told = result.turns(), result.conversations()
    late = [arrival >= SETTLED_S for arrival in told["arrival_s"]]
    of = [late[whose] for whose in turns["conversation"]]
    rows = zip(turns["first_token_s"], turns["ready_s"], turns["gap_mean_s"], of, strict=True)
    waits, gaps = [], []
    for first, ready, gap, counts in rows:
        if counts and math.isfinite(first):
            waits.append(first - ready)
        if counts and math.isfinite(gap):
            gaps.append(gap)
    ttfet = [
        at - tools
        for at, tools, counts in zip(told["ttfet_s"], told["tool_s"], late, strict=True)
        if counts and math.isfinite(at)
    ]
    changes = [(at, what) for at, what in result.events if what.startswith("RolesChanged")]
    return {
        "ttfet_no_tools_p95": percentile(ttfet, 95),
        "ttft_p95": percentile(waits, 95),
        "gap_p95": percentile(gaps, 95),
        "gap_mean": math.fsum(gaps) / len(gaps),
        "changes": [[round(at), *map(int, re.findall(r": (\d+)", what)[-2:])] for at, what in changes],
        "unstable": result.diagnosis()["unstable"],
    }


def main() -> None:
    """Run all cells, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = []
    for workload, preset, rate in CELLS:
        for name, policy in POLICIES.items():
            runs = [
                run(workload, preset, rate, policy, seed, options.traces)
                for seed in range(1, options.seeds + 1)
            ]
            times = ("ttfet_no_tools_p95", "ttft_p95", "gap_p95", "gap_mean")
            means = {key: round(math.fsum(one[key] for one in runs) / len(runs), 5) for key in times}
            row = {
                "workload": workload, "preset": preset, "rate_per_s": rate, "roles": name, **means,
                "changes": [one["changes"] for one in runs],
                "unstable": sum(one["unstable"] for one in runs),
            }  # fmt: skip
            found.append(row)
            print(json.dumps(row), flush=True)
    where = ROOT / "bench" / "results" / "policies-roles.json"
    where.write_text(json.dumps({"seeds": options.seeds, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
