"""The report of `make paper` as blocks: a pure function of the results, so a page can be checked against them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from conserve._counted import counted
from conserve.sim.split import PARTS
from conserve.sim.workload import WORKLOADS

from .blocks import Block, Figure, Heading, Listing, Paragraph, Table
from .causes import WHOLE
from .claims import CLAIMS, Verdict, judge
from .full import FLEET, SLOS
from .misled import ERRORS, MEASURES
from .results import Json, interval_of
from .trials import BASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from conserve.sim.stats import Interval

__all__ = ["FIGURES", "TITLE", "report"]

TITLE: Final = "The paper, reproduced"
FIGURES: Final = {
    "claims": ("rates.svg", "errors.svg"),
    "waterfall": ("waterfall.svg",),
    "full": ("full.svg",),
}

_SWITCHES: Final = {
    "a": "AMPD is reconstructed and routes, instead of ConServe with random wrong turns",
    "b": "a wrong turn is computed on the prefiller, instead of sleeping for its recorded backlog",
    "c": "time to the answer counts from arrival: the prefiller's queue and admission included",
    "d": "the product's admission by observed occupancy, instead of reserving the future peak and keeping all KV",
    "e": "prefiller and decoders run together and KV crosses, instead of a replayed record",
    "f": "each decoder reads its own KV, instead of one warmed prefix",
    "g": "generated tokens per joule, instead of the whole context again each turn",
}

_NOT_THEIRS: Final = (
    "Where paper mode is not the paper's method: its AMPD reserved KV turn by turn, while ConServe and collocated reserved the peak "
    "of each conversation's future. Here all three reserve the peak, as with reservation by turn conversations wait for each "
    "other's room for ever in some seeds, and such a run has no number. Its driver asked for room every 50 ms; here room "
    "is given as soon as there is some. Its figures are of one seed; here are several, with another order of the conversations in each."
)


def report(results: Json) -> list[Block]:
    """All parts that were run."""
    blocks: list[Block] = [Heading(1, TITLE), *_preface(results)]
    if "claims" in results:
        blocks += _headlines(results)
    if "waterfall" in results:
        blocks += _waterfall(results)
    if "claims" in results:
        blocks += [*_claims(results), *_sensitivity(results)]
    if "errors" in results:
        blocks += _errors(results)
    if "full" in results:
        blocks += _full(results)
    return blocks


def _preface(results: Json) -> list[Block]:
    lines = (
        "recorded traces" if results["recorded"] else "traces from the fitted generators, not recorded ones"
    )
    return [
        Paragraph(
            'What the simulator makes of "Observation, Not Prediction: Conversation-Level Disaggregated Scheduling for '
            'Agentic Serving" (arXiv 2606.01839). Every number on this page is written by one command; `make paper` runs it whole:'
        ),
        Listing(results["command"]),
        *([Paragraph(_ran(results["ran"]))] if "ran" in results else []),
        Paragraph(
            f"{counted(results['seeds'], 'seed')}; means with 95 % intervals (Student's t), changes paired by seed. Paper mode runs the 256 "
            f"conversations that the paper used; full mode uses {lines}. Nothing was fitted to a number of the paper: step "
            "times are the `a40-eager` preset, measured by its authors, and the yardsticks of the verdicts are in "
            "`python/conserve/sim/paper/claims.py`, apart from any run."
        ),
        *(
            [
                Paragraph(
                    "This was a **small** run: fewer seeds, traces and conversations than the published one."
                )
            ]
            if results["small"]
            else []
        ),
    ]


def _ran(by_part: dict[str, str]) -> str:
    """Which commit ran what."""
    commits = dict.fromkeys(by_part.values())
    if len(commits) == 1:
        return f"It ran on commit {next(iter(commits))}."
    each = (
        f"{', '.join(part for part, ran in by_part.items() if ran == commit)} on commit {commit}"
        for commit in commits
    )
    return f"Not all of it ran at once: {'; '.join(each)}."


def _headlines(results: Json) -> list[Block]:
    rows: list[Json] = results["claims"]
    lines = [row for row in results["lines"] if row["whose"] == "ours"]
    counts = Counter(row["verdict"] for row in (*rows, *lines))
    total = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    return [
        Heading(2, "The headlines"),
        Listing(_command(results, "claims")),
        _claim_table([row for row in rows if row["id"].startswith("headline/")], results["seeds"]),
        Paragraph(
            f"Of all {counts.total()} claims, the three of linear degradation further down among them: {total}. *Reproduced*: within 10 % (shares and changes: 3 points) of the paper's number, or "
            "that number is inside a narrow interval. *Partly*: the same shape (30 %; 10 points; a change of the same sign and at "
            "least half the size). At saturation the backlog grows until the arrivals end (†): such a number is one of "
            "a run of 256 conversations, in the paper as here, not of a system."
        ),
        *_headline_causes(results),
    ]


def _headline_causes(results: Json) -> list[Block]:
    # The first publications had no such table.
    if "causes" not in results:
        return []
    return [
        Heading(3, "Where the difference in p95 TTFET comes from"),
        Paragraph(
            "What the time to the answer is spent on, by the conversations at or above the 95th percentile of their run: a percentile has "
            "no parts that add up, the mean of those has. Multiples (x) of the conversation alone. In paper mode a wrong turn of "
            "AMPD sleeps for the prefiller's recorded backlog, which counts as a queue here, and for its own work. The paper's measure "
            "leaves out the wait for admission and the first prompt's wait for the prefiller, of both systems; delays by earlier wrong turns "
            "are in the queue. "
            "Computing counts from a prompt's first chunk to its end, whatever ran beside it. "
            + _main_cause(results["causes"])
        ),
        _causes(results["causes"]),
    ]


def _causes(rows: list[Json]) -> Table:
    names = {**PARTS, WHOLE: "**all**"}
    return Table(
        ("spent on", "ConServe x", "AMPD x", "difference x", "ConServe, all x", "AMPD, all x"),
        tuple(
            (
                names[row["part"]],
                *(_number(interval_of(row[name]).mean) for name in ("ours", "base")),
                _interval(interval_of(row["difference"]), _hundredths),
                *(_number(interval_of(row[name]).mean) for name in ("ours_mean", "base_mean")),
            )
            for row in rows
        ),
    )


def _main_cause(rows: list[Json]) -> str:
    """Which part makes most of the difference."""
    differences = {row["part"]: interval_of(row["difference"]).mean for row in rows}
    whole = differences.pop(WHOLE)
    if math.isnan(whole):
        return "In some seed somebody was never answered, so there is no difference."
    # What goes the other way is no cause of it.
    part = max(differences, key=lambda name: differences[name] * math.copysign(1, whole))
    return f"The largest part of the difference of {_hundredths(whole)} x is: {PARTS[part]}, {_hundredths(differences[part])} x."


def _hundredths(value: float) -> str:
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def _command(results: Json, part: str) -> str:
    small = "--small " if results["small"] else ""
    return f"conserve sim paper {small}--part {part}"


def _claims(results: Json) -> list[Block]:
    rows = [row for row in results["claims"] if not row["id"].startswith("headline/")]
    return [
        Heading(2, "Claim by claim, in paper mode"),
        Listing(_command(results, "claims")),
        Paragraph(
            "Multiples (x) are of the conversation alone on one GPU; a miss is a multiple above 5. "
            "(n/m)† behind a number: the backlog grew in n of m seeds."
        ),
        Paragraph(_NOT_THEIRS),
        Figure("rates.svg", "p95 TTFET by rate: the paper's points and ours"),
        Figure("errors.svg", "By share of mispredicted turns: the paper's points and ours"),
        _claim_table(rows, results["seeds"]),
        Heading(3, "Is it linear in the prediction error?"),
        Paragraph(
            "R² of a straight line over the eleven error rates, and the quadratic coefficient with its interval: where that "
            "excludes zero the curve bends. *Reproduced*: R² is 0.9 or more and no bend is beyond doubt; *partly*: one of both. "
            "The same test on the paper's own points says what its figures show. ConServe predicts nothing, so its own line is flat by construction: "
            "that half of the claim is a tautology."
        ),
        _lines(results["lines"]),
    ]


def _claim_table(rows: list[Json], seeds: int) -> Table:
    return Table(
        ("claim", "paper", "ours", "unit", "verdict"),
        tuple(
            (
                row["what"],
                f"{row['paper']:g}",
                _marked(_interval(interval_of(row["ours"])), row["unstable"], seeds),
                row["unit"],
                f"**{row['verdict']}**",
            )
            for row in rows
        ),
    )


def _marked(text: str, unstable: int, seeds: int) -> str:
    if not unstable:
        return text
    return f"{text} †" if unstable == seeds else f"{text} ({unstable}/{seeds})†"


def _lines(rows: list[Json]) -> Table:
    names = {"ttfet-p95": "p95 TTFET, x", "missed": "TTFET misses, %", "tokens-per-j": "tokens/J"}
    return Table(
        ("measure", "whose", "at 0 %", "at 50 %", "R² of a line", "quadratic coefficient", "linear"),
        tuple(
            (
                names[row["measure"]],
                row["whose"],
                _number(row["first"]),
                _number(row["last"]),
                f"{row['r2']:.3f}",
                _interval(interval_of(row["bend"])),
                f"**{row['verdict']}**",
            )
            for row in rows
        ),
        words=2,
    )


def _waterfall(results: Json) -> list[Block]:
    blocks: list[Block] = [
        Heading(2, "The waterfall: from the paper's method to an honest one"),
        Listing(_command(results, "waterfall")),
        Paragraph(
            "Strict ConServe at saturation against the paper's AMPD, and against collocated with affinity, while the paper's seven "
            "choices are undone one at a time, in two orders. Negative: ConServe is faster. Every point is a backlog that grows "
            "until the arrivals end, so read the direction, not the digits; full mode below has loads that can be held. At every step: "
            "five turns, no tool time, energy to the end of the drain."
            f" From step a on AMPD is `{results['baseline']}`."
        ),
        Figure("waterfall.svg", "p95 TTFET, misses and tokens/J, one switch at a time, in two orders"),
        Paragraph(
            " ".join(_largest(number, told) for number, told in enumerate(results["waterfall"], start=1))
        ),
    ]
    for number, told in enumerate(results["waterfall"], start=1):
        blocks += [Heading(3, f"Order {number}: {', '.join(told['order'])}"), _steps(told["steps"])]
    if "causes_off" in results:
        blocks += [
            Heading(3, "With all switches off: where the difference comes from"),
            Paragraph(
                "As the table below the headlines: the conversations at or above the 95th percentile, now with every wait since their arrival. "
                + _main_cause(results["causes_off"])
            ),
            _causes(results["causes_off"]),
        ]
    return blocks


def _largest(number: int, told: Json) -> str:
    """Which switch moves the headline most."""
    changes = [interval_of(step["ttfet"]).mean for step in told["steps"]]
    moves = [abs(after - before) for before, after in pairwise(changes)]
    if any(map(math.isnan, moves)):
        return f"In order {number} a step has no number."
    at = moves.index(max(moves))
    before, after = _signed(changes[at]), _signed(changes[at + 1])
    return (
        f"In order {number} the largest step is {told['order'][at]}: against AMPD from {before} to {after} %; "
        f"with all switches off {_percent(interval_of(told['steps'][-1]['ttfet']))} remain."
    )


def _steps(steps: list[Json]) -> Table:
    def cells(step: Json) -> tuple[str, ...]:
        switch = step["off"][-1:]
        return (
            f"{switch}: {_SWITCHES[switch]}" if switch else "paper mode",
            _percent(interval_of(step["ttfet"])),
            _percent(interval_of(step["ttfet_collocated"])),
            _percent(interval_of(step["energy"])),
            *(
                _number(interval_of(step[name]).mean)
                for name in ("ours_p95_x", "base_p95_x", "ours_missed", "base_missed", "collocated_missed")
            ),
        )

    header = (
        "now",
        "p95 TTFET against AMPD",
        "against collocated",
        "tokens/J against AMPD",
        "ConServe p95 x",
        "AMPD p95 x",
        "ConServe misses %",
        "AMPD misses %",
        "collocated misses %",
    )
    return Table(header, tuple(map(cells, steps)))


def _sensitivity(results: Json) -> list[Block]:
    read = Table(
        (
            "KV-read factor",
            "p95 TTFET against AMPD",
            "tokens/J against AMPD",
            "tokens/J, 200 W decoders",
            "p95 TBT x",
            "misses %",
        ),
        tuple(
            (
                f"{row['kv_read_factor']:g}",
                *(_judged(name, interval_of(row[name])) for name in ("ttfet", "energy", "capped")),
                *(_number(interval_of(row[name]).mean) for name in ("tbt_p95_x", "missed")),
            )
            for row in results["by_kv_read"]
        ),
    )
    watts = Table(
        ("system", "W above idle", "W in decode", "tokens/J", "p95 TTFET", "p95 TBT"),
        tuple(
            (
                row["system"],
                f"{row['memory_w']:g}",
                _number(interval_of(row["decode_w"]).mean),
                *(_percent(interval_of(row[name])) for name in ("capped", "ttfet", "tbt")),
            )
            for row in results["by_watts"]
        ),
    )
    return [
        Heading(2, "What the headlines depend on"),
        Paragraph(
            "Two constants of paper mode are not known: how much of their KV decoders read when all prompts share a warmed prefix "
            "(0.6 follows from the drain of the paper's own run and is what the claims above use; 1 is no sharing), and the watts "
            "of reading memory on an A40 (130 above idle is what the claims above use). The headlines over both ranges:"
        ),
        read,
        Paragraph("What a cap of 200 W on the decoders gives each system, against 300 W:"),
        watts,
    ]


def _errors(results: Json) -> list[Block]:
    told = results["errors"]
    names = {"ttfet_own_p95_s": "p95 TTFET s", "attained_2x": "attained 2x %", "tokens_per_j": "tokens/J"}
    rows = tuple(
        (
            f"`{row['knob']}`",
            names[row["measure"]],
            *(_number(one["mean"]) for one in row["values"]),
            "—" if row["r2"] is None else f"{row['r2']:.3f}",
            "—" if row["bend"] is None else _interval(interval_of(row["bend"])),
        )
        for row in told["ampd"]
    )
    stale = tuple(
        (row["stale_s"], *(_interval(interval_of(row[name])) for name in MEASURES)) for row in told["strict"]
    )
    return [
        Heading(2, "What errors cost in full mode"),
        Listing(_command(results, "errors")),
        Paragraph(
            f"The reconstruction of AMPD on `{told['workload']}` at load {told['load']:g}, with each kind of error: decisions turned round (`flip`), "
            "turns sent away (`toremote`), estimated times wrong (`noise`), lengths wrong (`length`). The claim that it "
            "degrades linearly depends on which is meant. Means over seeds; intervals are in the results file."
        ),
        Table(
            (
                "error",
                "measure",
                *(f"{error:.0%}" for error in ERRORS),
                "R² of a line",
                "quadratic coefficient",
            ),
            rows,
            words=2,
        ),
        Paragraph(
            "ConServe predicts nothing, but what it observes may be old. Strict, with news of the fleet up to so many seconds old:"
        ),
        Table(("s", *(names[name] for name in MEASURES)), stale),
    ]


def _judged(headline: str, ours: Interval) -> str:
    return f"{_percent(ours)}, {judge(CLAIMS[f'headline/{headline}'], ours).value}"


def _full(results: Json) -> list[Block]:
    told = results["full"]
    counts = told["conversations"].values()
    most, least = max(counts), min(counts)
    variants = ", ".join(f"`{told['variants'][name]}`" for name in told["policies"])
    missing = [name for name in WORKLOADS if name not in told["conversations"]]
    left_out = f" Not run: {', '.join(missing)}." if missing else ""
    sizes = f"{most} conversations a run" + (f" ({least} of the long sessions)" if least < most else "")
    blocks: list[Block] = [
        Heading(2, "Full mode: every policy, every trace"),
        Listing(_command(results, "full")),
        Paragraph(
            f"Four `{FLEET.preset}` GPUs (with prefillers: {FLEET.prefillers} of them), the real router and its gate (`evict_idle`, `tail_waits`) for every policy, real queues and "
            f"handoffs; {sizes}, Poisson arrivals. Load 1 is the rate at which the same GPUs, collocated and "
            "never short of work, end conversations without tool time. TTFET counts from arrival with all waits; *own* is without tool time. "
            f"Attained: the answer within {SLOS[-1]}x and the last turn's gaps within {SLOS[-1]}x of the conversation alone "
            f"(and {SLOS[0]}x, the stricter pair). Measured are conversations that arrive between 20 and 90 % of all. "
            "(n†): n seeds were unstable and are left out; —: most were, so there is no number. "
            f"Changes are against `{BASE}`, paired by seed; bold: beyond doubt. Policies: {variants}.{left_out}"
        ),
        _score(told["rows"], told["policies"]),
        Figure("full.svg", f"Change of p95 TTFET without tools against {BASE}, by policy and trace"),
    ]
    for workload, rows in groupby(told["rows"], key=lambda row: str(row["workload"])):
        rate = told["capacity_per_s"][workload]
        blocks += [
            Heading(3, workload),
            Paragraph(_load(rate, told.get("first_share", {}).get(workload))),
            _trial_table(list(rows)),
        ]
    return blocks


def _load(rate: float, first_share: float | None) -> str:
    """What load 1 is, and how far the work comes in two phases."""
    text = f"Load 1 is {rate:.3g} conversations/s."
    if first_share is None:
        return text
    return f"{text} First turns bring {first_share:.0f} % of the prompt tokens that are not history."


def _score(rows: list[Json], policies: list[str]) -> Table:
    """In how many settings a policy is better or worse than the baseline, beyond doubt."""

    def cells(policy: str) -> tuple[str, ...]:
        own = [row for row in rows if row["policy"] == policy]
        return (f"`{policy}`", *(_tally(own, name, sign) for name, sign in _SCORED), str(len(own)))

    others = [policy for policy in policies if policy != BASE]
    header = (
        f"better / worse than `{BASE}` / no number",
        "own p95 TTFET",
        "last-turn TBT p95",
        "tokens/J",
        "settings",
    )
    return Table(header, tuple(map(cells, others)))


_SCORED: Final = (("ttfet_own_p95_s", -1), ("tbt_p95_s", -1), ("tokens_per_j", 1))


def _tally(rows: list[Json], name: str, good: int) -> str:
    changes = [interval_of(row[f"{name}_change"]) for row in rows]
    sure = [change.mean * good for change in changes if change.excludes_zero]
    unknown = sum(1 for change in changes if math.isnan(change.mean))
    return f"{sum(1 for one in sure if one > 0)} / {sum(1 for one in sure if one < 0)} / {unknown}"


def _trial_table(rows: list[Json]) -> Table:
    header = (
        "policy",
        "load",
        "TTFET p50/p95/p99 s",
        "own p50/p95/p99 s",
        f"own p95 against {BASE}",
        "TTFT p50/p95/p99 s",
        "last-turn TBT p50/p95/p99 ms",
        f"TBT p95 against {BASE}",
        f"attained {SLOS[-1]}x ({SLOS[0]}x) %",
        f"goodput {SLOS[-1]}x /s",
        "tokens/J",
        f"tokens/J against {BASE}",
        "handoffs",
        "recomputed %",
    )
    return Table(header, tuple(map(_trial, rows)))


def _trial(row: Json) -> tuple[str, ...]:
    def mean(name: str) -> float:
        return interval_of(row[name]).mean

    def three(name: str, scale: float = 1.0) -> str:
        values = [mean(f"{name}_p{share}_s") * scale for share in (50, 95, 99)]
        return "—" if any(map(math.isnan, values)) else " / ".join(map(_number, values))

    def change(name: str) -> str:
        return "" if row["policy"] == BASE else _percent(interval_of(row[f"{name}_change"]), strong=True)

    unstable = f" ({row['unstable']}†)" if row["unstable"] else ""
    attained = mean(f"attained_{SLOS[-1]}x")
    return (
        f"`{row['policy']}`{unstable}",
        f"{row['load']:g}",
        three("ttfet"),
        three("ttfet_own"),
        change("ttfet_own_p95_s"),
        three("ttft"),
        three("tbt", 1000.0),
        change("tbt_p95_s"),
        "—" if math.isnan(attained) else f"{attained:.1f} ({mean(f'attained_{SLOS[0]}x'):.1f})",
        _number(mean(f"goodput_{SLOS[-1]}x_per_s")),
        _number(mean("tokens_per_j")),
        change("tokens_per_j"),
        _number(mean("handoffs")),
        _number(100 * mean("recomputed_share")),
    )


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "—"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _interval(of: Interval, number: Callable[[float], str] = _number) -> str:
    if math.isnan(of.mean):
        return "—"
    if math.isinf(of.high):
        return number(of.mean)
    return f"{number(of.mean)} [{number(of.low)}, {number(of.high)}]"


def _percent(of: Interval, *, strong: bool = False) -> str:
    if math.isnan(of.mean):
        return "—"
    if math.isinf(of.high):
        return f"{_signed(of.mean)} %"
    text = f"{_signed(of.mean)} % [{_signed(of.low)}, {_signed(of.high)}]"
    return f"**{text}**" if strong and of.excludes_zero else text


def _signed(value: float) -> str:
    # Neither plus nor minus nought.
    return f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"
