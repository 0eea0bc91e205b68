"""Keeps processes running: one that ends by itself is started again, later each time it ends soon.

Promises: one process's trouble delays no other; what happens is told as it happens. Leaves to others: what a lost worker
means for conversations (the router finds out by itself), and the end of everything (`Fleet.stop`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from .fleet import Fleet
from .process import SupervisorError

logger = logging.getLogger(__name__)

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
# A process that served for so long was well: its next end counts as its first.
_WELL_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process ended although it was needed; it is started again after `wait_s`."""

    name: str
    status: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """A process serves again."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class NotRestarted:
    """A process did not come up again; `why` ends with the tail of its log."""

    name: str
    why: str


Happening: TypeAlias = Ended | Restarted | NotRestarted


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next start: doubled after each short life, from 1 s to 60 s."""

    next_s: float = _FIRST_S

    def after(self, lived_s: float) -> float:
        """The wait after a life of `lived_s`."""
        if lived_s >= _WELL_S:
            self.next_s = _FIRST_S
        wait_s, self.next_s = self.next_s, min(self.next_s * 2, _LONGEST_S)
        return wait_s


async def keep(
    fleet: Fleet,
    names: Iterable[str],
    *,
    timeout_s: float,
    tell: Callable[[Happening], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Keep the named processes of `fleet` running until cancelled. `timeout_s` is for each start."""
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(_keep_one(fleet, name, timeout_s, tell, sleep), name=f"keep {name}")


async def _keep_one(
    fleet: Fleet,
    name: str,
    timeout_s: float,
    tell: Callable[[Happening], None],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    backoff = Backoff()
    while True:
        process = fleet[name]
        status = await process.wait()
        wait_s = backoff.after(time.monotonic() - process.started_at_s)
        logger.warning("process ended name=%s status=%d restart_in_s=%g", name, status, wait_s)
        tell(Ended(name, status, wait_s))
        await sleep(wait_s)
        try:
            tell(Restarted(name, await fleet.restart(name, timeout_s=timeout_s)))
        except SupervisorError as error:
            tell(NotRestarted(name, str(error)))
