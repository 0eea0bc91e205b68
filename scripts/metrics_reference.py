"""The page of metrics: names, kinds and labels from a page that a small router, door and energy account write, values in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from conserve import Decoder, ManualClock, Prefiller, Router
from conserve._core import Dispatcher
from conserve.energy.account import Account, Zone
from conserve.energy.exposition import exposition
from conserve.energy.meter import Source
from conserve.proxy.metrics import DoorMetrics

# A batch of KV events as vLLM packs it: [0.0, [{"type": "AllBlocksCleared"}]].
_EMPTIED = b"\x92\xcb" + bytes(8) + b"\x91\x81\xa4type\xb0AllBlocksCleared"


_ANY: Final = "any"
_MANY: Final = 4
_TURNS: Final = {
    "first": "a conversation's first turn",
    "pinned": "a later one, on its decoder",
    "relocated": "one that was placed again: its decoder is gone, or most of its prompt was not there",
}
_FREE: Final[Mapping[str, str]] = {
    "worker": "its name in the settings or the fleet file",
    "id": "its number in `/v1/fleet`; a worker that was restarted has a new one",
    "tier": "the worker's `tier`; `default` without one, `others` beyond 62 of them",
    "route": "the path of the request: `/v1/chat/completions` or `/v1/completions`",
    "status": "the HTTP status of the answer; 499 is for a client that left before it had all of it",
    "zone": "what one meter measures: a GPU, or a package of the CPU",
}
"""Labels whose values are the user's or the machine's."""
_WORDS: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("kind", "conserve_turns_started_total"): _TURNS,
    ("kind", "conserve_turns_finished_total"): _TURNS,
    ("kind", "conserve_ttft_seconds"): _TURNS,
    ("kind", "conserve_dispatch_total"): {
        "requests_refused": "requests refused for what they say; no worker was asked",
        "prefills_retried": "prefills sent to another prefiller",
        "prefills_on_decoder": "prompts computed on their decoder because no prefiller could",
        "handoffs_recomputed": "handoffs whose KV could not be loaded; the decoder computed the prompt",
        "handoffs_expired": "handoffs as old as the lease, and so not used",
        "handoffs_malformed": "answers whose `kv_transfer_params` are no object with members, and so neither used nor passed on",
        "decodes_retried": "turns sent to a decoder again, the same or another, before their first token",
        "streams_cut": "streams that ended with an error event",
    },
    ("kind", "conserve_door_upstream_failures_total"): {
        "connect": "the connection was refused",
        "unreachable": "no way to the address",
        "no_socket": "no file or port of the router was left to connect with",
        "reset": "closed before the answer was complete",
        "connect_timeout": "no connection in time",
        "first_byte_timeout": "no answer in time",
        "idle_timeout": "a stream that fell silent",
        "too_large": "an answer over the limit",
        "protocol": "an answer that is no HTTP, or not what was asked for",
    },
    ("reason", "conserve_turns_failed_total"): {
        "client_gone": "the client left",
        "prefill_failed": "no prefiller computed the prompt",
        "decoder_lost": "the decoder is gone, and the KV with it",
        "decoder_error": "the decoder answered an error",
        "timeout": "a worker did not answer in time",
        "rejected": "a worker refused the request",
        "no_socket": "the router had no file or port left to ask a worker with",
        "dropped": "given up without a word",
    },
    ("reason", "conserve_conversations_closed_total"): {
        "asked": "somebody closed it",
        "idle": "not used for longer than `idle_timeout_s`",
        "never_placed": "its first turn reached no decoder",
    },
    ("queue", "conserve_waiting_turns"): {
        "newcomers": "first turns",
        "tail": "turns of conversations that have a decoder",
    },
    ("how", "conserve_placements_total"): {
        "local": "the decoder computes the prompt itself",
        "handoff": "another worker computes it and hands it over",
        "afresh": "most of the KV was gone, and it was placed as if it were new",
        "moved": "home was so slow that another computes the whole prompt sooner",
    },
    ("why", "conserve_turns_waited_total"): {
        "room": "for a place",
        "growth": "for blocks on its own decoder",
        "placing": "for the turn that brings its conversation to a decoder",
        "thrash": "its KV is gone and the fleet computes again what it had computed",
    },
    ("met", "conserve_slo_turns_total"): {"no": "later than the SLO", "yes": "in time"},
    ("met", "conserve_slo_output_tokens_total"): {"no": "later than the SLO", "yes": "in time"},
    ("during", "conserve_door_client_gone_total"): {
        "start": "the request was read",
        "waiting": "the turn stood in line",
        "prefill": "a prefiller was asked",
        "decode": "a decoder was asked",
    },
    ("phase", "conserve_energy_joules_total"): {
        "prefill": "turns prefilled",
        "decode": "turns decoded",
        "idle": "no turn ran",
    },
    ("source", _ANY): {
        "counter": "a counter of energy",
        "power samples": "power, looked at again and again",
    },
    ("role", _ANY): {
        "prefiller": "computes first prompts",
        "decoder": "holds conversations",
        "both": "does both",
    },
}
"""What each value of a label means, for one metric or for any."""
_MEASURED_LATER: Final = frozenset({"conserve_link_seconds_per_token", "conserve_recommended_prefillers"})
"""Without labels, and without a sample on a page that a few turns write."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric as a page shows it."""

    kind: str
    said: str
    labels: tuple[str, ...] | None
    """None: no sample of it is there."""
    values: Mapping[str, frozenset[str]]
    """The values of each label on the page."""


def families(page: str) -> dict[str, Family]:
    """The metrics of a Prometheus page, in its order. A histogram's samples are its own, and `le` is no label of its own."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", page, re.MULTILINE))
    seen: dict[str, dict[str, set[str]]] = {}
    for sample, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
        name = sample if sample in kinds else sample.rpartition("_")[0]
        pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        for label, value in pairs.items():
            if label != "le":
                seen.setdefault(name, {}).setdefault(label, set()).add(value)
        seen.setdefault(name, {})
    return {
        name: Family(
            kind,
            helps[name],
            tuple(seen[name]) if name in seen else None,
            {label: frozenset(values) for label, values in seen.get(name, {}).items()},
        )
        for name, kind in kinds.items()
    }


def sample() -> str:
    """A page on which every metric has a sample, written by the program itself."""
    clock = ManualClock()
    router = Router(
        prefillers=[Prefiller("http://p0:8000")],
        decoders=[Decoder("http://d0:8000", kv_blocks=1000)],
        clock=clock,
    )
    for worker in ("p0", "d0"):
        router.observe(worker, kv_usage=0.0, running=0, waiting=0)
        router.observe_events(worker, 0, _EMPTIED)
    with router.turn("task-42", prompt_tokens=1000) as turn:
        clock.advance(1.0)
        turn.prefilled(1000)
        turn.finish(output_tokens=10)
    door = DoorMetrics()
    door.requests["/v1/chat/completions", 200] = 1
    door.client_gone["start"] = 1
    door.upstream_failures["connect"] = 1
    account = Account({"gpu0": Zone(("p0",))}, {"p0": "default"})
    account.book("gpu0", 1_000_000, 1.0, {})
    account.workers["p0"].output_tokens = 1
    return (
        router.metrics()
        + door.exposition(in_flight=0, draining=False, dispatched=Dispatcher(router).counters)
        + exposition(account, {"gpu0": _Gpu()})
    )


class _Gpu:
    """A meter that is there."""

    name = "gpu0"
    source: Source = "counter"

    def read_uj(self) -> int:
        """Nothing used."""
        return 0


def rows(found: Mapping[str, Family]) -> Iterator[tuple[str, str, str, str]]:
    """Name, kind, labels and meaning of each metric."""
    for name, family in found.items():
        if family.labels is None and name not in _MEASURED_LATER:
            raise ValueError(f"{name} has no sample to read its labels from")
        labels = ", ".join(f"`{label}`" for label in family.labels or ()) or "–"
        yield f"`{name}`", family.kind, labels, family.said


def label_rows(found: Mapping[str, Family]) -> Iterator[tuple[str, str, str]]:
    """Each label, the metrics that have it, and its values; ValueError for a value without a meaning here."""
    meanings: dict[tuple[str, str], list[str]] = {}
    for name, family in found.items():
        for label, values in family.values.items():
            words = _WORDS.get((label, name)) or _WORDS.get((label, _ANY))
            if words is None:
                meaning = _FREE[label]
            elif values <= set(words):
                meaning = "; ".join(f"`{value}`: {text}" for value, text in words.items())
            else:
                raise ValueError(f"{name}: say what {label}={sorted(values - set(words))} means")
            meanings.setdefault((label, meaning), []).append(name)
    for (label, meaning), names in meanings.items():
        of = (
            ", ".join(f"`{name}`" for name in names)
            if len(names) <= _MANY
            else "the metrics above that have it"
        )
        yield f"`{label}`", of, meaning
