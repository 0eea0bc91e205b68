"""The workloads that a run can name, from recorded traces where they are at hand, else from the fitted generators."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from conserve.errors import ConfigError

from .load import read_jsonl, read_length_table
from .synthetic import generate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .record import Conversation

__all__ = ["SYNTHETIC", "WORKLOADS", "Source", "conversations", "traces_dir"]

SYNTHETIC: Final = "synthetic:"
"""Before a workload's name: generated, though recorded traces are at hand."""
TRACES_VARIABLE: Final = "CONSERVE_TRACES"
_PICK_STREAM: Final = 0x91C4


@dataclass(frozen=True, slots=True)
class Source:
    """Where a workload's records are, and which of them belong to it."""

    file: str
    resumed: bool | None = None
    """Keep only sessions recorded from the middle (`True`) or from the start (`False`)."""
    max_turns: int | None = None


WORKLOADS: Final[dict[str, Source]] = {
    "swebench": Source("swebench_bm25_lengths.csv.gz", max_turns=5),
    "claude-code-fresh": Source("claude_code_weka.jsonl.gz", resumed=False),
    "claude-code-resumed": Source("claude_code_weka.jsonl.gz", resumed=True),
    "claude-code-subagents": Source("claude_code_weka_subagents.jsonl.gz"),
    "tau-bench": Source("tau_bench_airline.jsonl.gz"),
    "mini-swe": Source("lmcache_miniswe.jsonl.gz"),
    "swe-agent": Source("swe_agent.jsonl.gz"),
    "mooncake-chat": Source("mooncake_conversation.jsonl.gz"),
}


def traces_dir() -> Path | None:
    """The folder of recorded traces: the variable CONSERVE_TRACES; `None` if it is not set.

    Raises:
        ConfigError: the variable names no folder.
    """
    named = os.environ.get(TRACES_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise ConfigError(f"{TRACES_VARIABLE} names {folder}, which is not a folder")
    return folder


def conversations(name: str, count: int | None, *, seed: int, traces: Path | None) -> list[Conversation]:
    """`count` conversations of the workload `name`; `None` takes each recorded one once.

    With a folder `traces` they are recorded ones, in a shuffled order that depends only on the seed, over again with a new
    name when there are fewer than `count`. Without, the fitted generator makes them (128 when `count` is `None`).

    Raises:
        ConfigError: no workload has that name, `count` is below 1, or a record is broken.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"workload is {name!r}; choose one of {', '.join(WORKLOADS)}")
    if count is not None and count < 1:
        raise ConfigError(f"conversations is {count}; it must be at least 1")
    if traces is None:
        return list(generate(name, 128 if count is None else count, seed=seed))
    recorded = list(_recorded(WORKLOADS[name], traces))
    if not recorded:
        raise ConfigError(f"{traces / WORKLOADS[name].file} holds no conversation of {name}")
    return _shuffled(recorded, len(recorded) if count is None else count, seed=seed)


def _recorded(source: Source, traces: Path) -> Iterable[Conversation]:
    path = traces / source.file
    if source.file.endswith(".csv.gz"):
        return read_length_table(path, max_turns=source.max_turns)
    return (one for one in read_jsonl(path) if source.resumed is None or one.resumed == source.resumed)


def _shuffled(recorded: list[Conversation], count: int, *, seed: int) -> list[Conversation]:
    stream = np.random.default_rng((_PICK_STREAM, seed))
    chosen: list[Conversation] = []
    for lap in range(-(-count // len(recorded))):
        order = stream.permutation(len(recorded))
        for index in islice(order, count - len(chosen)):
            one = recorded[int(index)]
            chosen.append(one if lap == 0 else one.renamed(f"{one.id}.{lap}"))
    return chosen
