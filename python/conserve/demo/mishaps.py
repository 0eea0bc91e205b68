"""What did not go as planned although every turn was answered, and what the processes' logs say of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from .report import ConversationReport, FleetReport

# Counters of the router's `dispatch`, each with what it means to the reader of the report.
_MEANING: Final[Mapping[str, str]] = {
    "prefills_retried": "asked the prefiller for a prompt once more",
    "prefills_on_decoder": "left a prompt to its decoder, because the prefiller did not compute it",
    "handoffs_recomputed": "had a prompt computed again on its decoder, because the decoder could not load the KV",
    "handoffs_expired": "had a prompt computed again, because its handoff was older than the prefiller's lease",
    "handoffs_malformed": "could not read where a prefiller keeps the KV of a prompt",
    "decodes_retried": "asked a decoder once more",
    "streams_cut": "cut off an answer that its decoder did not end",
}
_WARNED: Final = re.compile(r" (?:WARNING|ERROR|CRITICAL) ")
_MOST_LINES: Final = 6
_LINE_CHARS: Final = 300


def mishaps(conversations: Sequence[ConversationReport], fleet: FleetReport) -> Iterator[str]:
    """One sentence for each way in which the run was not plain: KV computed again, conversations that moved."""
    counters = fleet.router.get("dispatch", {})
    for name, meaning in _MEANING.items():
        if count := counters.get(name, 0):
            yield f"the router {meaning}: {times(count)} ({name})"
    for one in conversations:
        if one.relocations:
            decoders = ", then ".join(one.decoders)
            yield f"conversation {one.agent.label} was relocated {times(one.relocations)}: {decoders}"


def warnings(logs: Path) -> tuple[str, ...]:
    """The first lines in which a process warned, each with the name of its log."""
    lines = (
        f"{path.stem}: {line[:_LINE_CHARS]}"
        for path in sorted(logs.glob("*.log"))
        for line in path.read_text("utf-8", "replace").splitlines()
        if _WARNED.search(line)
    )
    return tuple(line for line, _ in zip(lines, range(_MOST_LINES), strict=False))


def times(count: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
