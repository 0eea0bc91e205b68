"""A time limit that is set for each piece of a stream and costs no timer for each."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

__all__ = ["Watchdog"]

Whom: TypeAlias = Literal["worker", "client"]


class Watchdog:
    """Calls `bark` once, when the party last named by `expect` took longer than it may.

    The timer is only moved when it goes off too early: a stream of a thousand pieces arms it a few times.
    """

    __slots__ = ("_bark", "_due_s", "_handle", "_loop", "_whom", "fired")

    def __init__(self, loop: asyncio.AbstractEventLoop, bark: Callable[[], None]) -> None:
        self._loop = loop
        self._bark = bark
        self._due_s = math.inf
        self._whom: Whom = "worker"
        self._handle: asyncio.TimerHandle | None = None
        self.fired: Whom | None = None

    def expect(self, whom: Whom, limit_s: float) -> None:
        """From now on wait for `whom`, for `limit_s`."""
        self._whom = whom
        self._due_s = due_s = self._loop.time() + limit_s
        handle = self._handle
        if handle is None or handle.when() > due_s:
            self._arm(due_s)

    def rest(self) -> None:
        """Wait for nobody."""
        self._due_s = math.inf

    def close(self) -> None:
        """Never bark again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._due_s = math.inf

    def _arm(self, due_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._handle = None
        if self._loop.time() >= self._due_s:
            self.fired = self._whom
            self._due_s = math.inf
            self._bark()
        elif self._due_s != math.inf:
            self._arm(self._due_s)
