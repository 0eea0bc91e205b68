"""The figures of the paper in paper mode: which runs each number needs, and what they say about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from conserve.sim.stats import Interval, convexity, mean_interval

from .causes import causes
from .claims import CLAIMS, ERROR_RATES, RATES, Claim, judge, judge_line
from .mode import SYSTEMS, Setting, paper_conversations
from .results import Json, Sample, plain, sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .cells import Cell, Store

__all__ = ["Experiments", "cell_of"]

SATURATED_PER_S: Final = 2.0
"""What the paper offered so that its prefiller served 1.634."""
CAPPED_W: Final = 200.0
KV_READ_FACTORS: Final = (0.6, 0.8, 1.0)
MEMORY_WATTS: Final = (60.0, 130.0, 180.0, 225.0)


def cell_of(setting: Setting) -> Cell:
    """The run as JSON."""
    return {"kind": "paper", **asdict(setting)}


def _offered(rate: float) -> float:
    return SATURATED_PER_S if rate == RATES[-1] else rate


@dataclass(frozen=True, slots=True)
class Experiments:
    """All of them, over `seeds` seeds of `conversations` conversations."""

    seeds: int
    conversations: int

    def _settings(self) -> Iterator[Setting]:
        make = partial(Setting, seed=0, conversations=self.conversations)
        top = partial(make, offered_per_s=SATURATED_PER_S)
        for system in SYSTEMS:
            yield from (make(system=system, offered_per_s=_offered(rate)) for rate in RATES)
            yield top(system=system, decoder_cap_w=CAPPED_W)
        yield from (top(system="ampd-paper", error=error) for error in ERROR_RATES)
        for system in ("strict", "ampd-paper"):
            for factor in KV_READ_FACTORS:
                yield top(system=system, kv_read_factor=factor)
                yield top(system=system, kv_read_factor=factor, decoder_cap_w=CAPPED_W)
        for watts in MEMORY_WATTS:
            for cap in (300.0, CAPPED_W):
                yield from (
                    top(system=system, memory_w=watts, decoder_cap_w=cap)
                    for system in ("strict", "ampd-paper", "collocated")
                )

    def cells(self) -> Iterator[Cell]:
        """Every run that is needed; some more than once."""
        for setting in self._settings():
            for seed in range(1, self.seeds + 1):
                yield {**cell_of(setting), "seed": seed}

    def _sample(
        self,
        store: Store,
        system: str,
        *,
        offered_per_s: float = SATURATED_PER_S,
        error: float = 0.10,
        decoder_cap_w: float = 300.0,
        memory_w: float = 130.0,
        kv_read_factor: float = 0.6,
    ) -> Sample:
        def cell(seed: int) -> Cell:
            setting = Setting(
                system,
                offered_per_s,
                seed,
                error=error,
                decoder_cap_w=decoder_cap_w,
                memory_w=memory_w,
                kv_read_factor=kv_read_factor,
                conversations=self.conversations,
            )
            return cell_of(setting)

        return sample(store, cell, self.seeds)

    def claims(self, store: Store) -> list[Json]:
        """Each claim with ours and the verdict, in the paper's order."""
        return [self._row(store, claim) for claim in CLAIMS.values()]

    def _row(self, store: Store, claim: Claim) -> Json:
        ours, unstable = self._ours(store, claim.id)
        return {
            "id": claim.id,
            "what": claim.what,
            "unit": claim.unit,
            "source": claim.source,
            "paper": claim.paper,
            "ours": plain(ours),
            "unstable": unstable,
            "verdict": judge(claim, ours).value,
        }

    def _ours(self, store: Store, name: str) -> tuple[Interval, int]:
        match name.split("/"):
            case ["headline", "no-misses"]:
                return _worst(self._by_rate(store, "strict", RATES), "ttfet_missed")
            case ["headline", "capped"]:
                capped, base = (
                    self._sample(store, "strict", decoder_cap_w=CAPPED_W),
                    self._sample(store, "strict"),
                )
                return capped.change(base, "tokens_per_j"), max(capped.unstable, base.unstable)
            case ["headline", which]:
                ours, base = self._sample(store, "strict"), self._sample(store, "ampd-paper")
                column = {"ttfet": "ttfet_p95_x", "energy": "tokens_per_j"}[which]
                return ours.change(base, column), max(ours.unstable, base.unstable)
            case ["run", which]:
                return self._run(store, which)
            case ["missed-below", system]:
                below = self._by_rate(store, system, RATES[:-2])
                return _worst(below, "ttfet_missed", "tbt_missed", "e2e_missed")
            case ["ttfet-p95" | "tbt-p95" | "tbt-missed" as measure, system, rate]:
                runs = self._sample(store, system, offered_per_s=_offered(float(rate)))
                column = {"ttfet-p95": "ttfet_p95_x", "tbt-p95": "tbt_p95_x", "tbt-missed": "tbt_missed"}[
                    measure
                ]
            case ["wrong", measure, error]:
                runs = self._sample(store, "ampd-paper", error=float(error))
                column = {
                    "ttfet-p95": "ttfet_p95_x",
                    "missed": "ttfet_missed",
                    # The paper left the prefiller's idle time out of this one.
                    "tokens-per-j": "tokens_per_j_uncorrected",
                }[measure]
            case [measure, system]:
                cap = CAPPED_W if measure.endswith("-capped") else 300.0
                runs = self._sample(store, system, decoder_cap_w=cap)
                column = _AT_SATURATION[measure]
            case _:
                raise KeyError(name)
        return runs.mean(column), runs.unstable

    def _by_rate(self, store: Store, system: str, rates: Sequence[float]) -> list[Sample]:
        return [self._sample(store, system, offered_per_s=_offered(rate)) for rate in rates]

    def _run(self, store: Store, which: str) -> tuple[Interval, int]:
        if which == "first-share":
            tasks = paper_conversations()
            first = sum(task.turns[0].append_tokens for task in tasks)
            # Counted, not sampled.
            share = 100 * first / sum(task.prompt_tokens_new for task in tasks)
            return Interval(share, share, share, len(tasks)), 0
        runs = self._sample(store, "strict")
        column = {
            "served": "served_per_s",
            "last-prompt": "last_prompt_s",
            "in-flight": "in_flight_max",
            "span": "end_s",
        }[which]
        return runs.mean(column), runs.unstable

    def lines(self, store: Store) -> list[Json]:
        """How straight each measure is in the share of mispredicted turns: the paper's and ours."""
        rows: list[Json] = []
        for measure, column in (
            ("ttfet-p95", "ttfet_p95_x"),
            ("missed", "ttfet_missed"),
            ("tokens-per-j", "tokens_per_j_uncorrected"),
        ):
            theirs = [CLAIMS[f"wrong/{measure}/{error:.2f}"].paper for error in ERROR_RATES]
            ours = [self._sample(store, "ampd-paper", error=error).mean(column).mean for error in ERROR_RATES]
            for whose, values in (("paper", theirs), ("ours", ours)):
                fit, bend = convexity(ERROR_RATES, values)
                rows.append(
                    {
                        "measure": measure,
                        "whose": whose,
                        "r2": fit,
                        "bend": plain(bend),
                        "first": values[0],
                        "last": values[-1],
                        "verdict": judge_line(fit, bend).value,
                    }
                )
        return rows

    def causes(self, store: Store) -> list[Json]:
        """Where the headline of p95 TTFET comes from."""
        return causes(self._sample(store, "strict"), self._sample(store, "ampd-paper"))

    def by_kv_read(self, store: Store) -> list[Json]:
        """The headlines for what decoders read of a shared prefix."""
        rows: list[Json] = []
        for factor in KV_READ_FACTORS:
            ours, base = (
                self._sample(store, name, kv_read_factor=factor) for name in ("strict", "ampd-paper")
            )
            capped = self._sample(store, "strict", kv_read_factor=factor, decoder_cap_w=CAPPED_W)
            rows.append(
                {
                    "kv_read_factor": factor,
                    "ttfet": plain(ours.change(base, "ttfet_p95_x")),
                    "energy": plain(ours.change(base, "tokens_per_j")),
                    "capped": plain(capped.change(ours, "tokens_per_j")),
                    "tbt_p95_x": plain(ours.mean("tbt_p95_x")),
                    "missed": plain(ours.mean("ttfet_missed")),
                }
            )
        return rows

    def by_watts(self, store: Store) -> list[Json]:
        """What the cap on decoders gives each system, for the watts that reading memory may draw."""
        rows: list[Json] = []
        for system in ("strict", "ampd-paper", "collocated"):
            for watts in MEMORY_WATTS:
                base = self._sample(store, system, memory_w=watts)
                capped = self._sample(store, system, memory_w=watts, decoder_cap_w=CAPPED_W)
                rows.append(
                    {
                        "system": system,
                        "memory_w": watts,
                        "decode_w": plain(base.mean("decode_w")),
                        "capped": plain(capped.change(base, "tokens_per_j")),
                        "ttfet": plain(capped.change(base, "ttfet_p95_x")),
                        "tbt": plain(capped.change(base, "tbt_p95_x")),
                    }
                )
        return rows


def _worst(by_rate: list[Sample], *measures: str) -> tuple[Interval, int]:
    """The largest of the measures at any rate, seed by seed."""
    columns = [runs.all(measure) for runs in by_rate for measure in measures]
    worst = [max(values) for values in zip(*columns, strict=True)]
    return mean_interval(worst), max(runs.unstable for runs in by_rate)


_AT_SATURATION: Final = {
    "ttfet-gmean": "ttfet_gmean_x",
    "tbt-p95": "tbt_p95_x",
    "ttfet-missed": "ttfet_missed",
    "tbt-missed": "tbt_missed",
    "e2e-p95": "e2e_p95_x",
    "e2e-missed": "e2e_missed",
    "tokens-per-j": "tokens_per_j",
    "tokens-per-j-capped": "tokens_per_j",
    "ttfet-p95-capped": "ttfet_p95_x",
}
