"""What it takes to start one worker process; a value, nothing is started here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_URL = re.compile(r"https?://[^\s\"',]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def ready_event(line: str) -> str | None:
    """The URL of a worker's ready line, `{"event":"ready","url":...}`; None for any other line."""
    if '"ready"' not in line:
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("event") != "ready":
        return None
    url = event.get("url")
    return url if isinstance(url, str) and _URL.fullmatch(url) else None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of the fleet: what it is called, what it does, and how it is started.

    `name` names the log file, so it is a plain word of letters, digits, `.`, `_`, `-`. `env` is added to the
    parent's environment. `ready` is given each line of the standard output and answers with the URL on the line
    that says the process serves; where `url` is known beforehand, a healthy answer there is enough and no line is
    needed. `hidden_prefixes` are the beginnings of inherited variables that the process must not see.
    `has_children`: it starts processes of its own, which must not outlive us either.
    """

    name: str
    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    hidden_prefixes: tuple[str, ...] = ()
    has_children: bool = False
    health_path: str = "/health"
    ready: Callable[[str], str | None] = ready_event
    url: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"process name {self.name!r}: use letters, digits, '.', '_' or '-', 64 at most")
        if not self.argv:
            raise ValueError(f"process {self.name}: argv is empty")

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables that the process sees."""
        kept = {key: value for key, value in inherited.items() if not key.startswith(self.hidden_prefixes)}
        return {**kept, **self.env}
