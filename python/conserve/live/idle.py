"""Engines that nobody uses: between two runs what the first one left must be gone, or the second one has less room."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from .counters import told_by
from .errors import LiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

    from .engines import Engines, Worker

__all__ = ["until_idle"]

_ASK_EVERY_S: Final = 0.2
_SAY_AFTER_S: Final = 3.0


async def until_idle(http: aiohttp.ClientSession, engines: Engines, *, tell: Callable[[str], None]) -> None:
    """Waits until no engine computes, or holds KV that it may not evict.

    A prefiller keeps what nobody fetched until its lease ends, a decoder under `retention = "pin"` each turn until its time is up.

    Raises:
        LiveError: one does so for too long, or does not answer.
    """
    began_s = time.monotonic()
    is_told = False
    for worker in engines.workers:
        while (what := await _holds(http, worker)) is not None:
            waited_s = time.monotonic() - began_s
            if waited_s > engines.idle_timeout_s:
                raise LiveError(
                    f"{worker.name} at {worker.url} {what} after {waited_s:.0f} s: the engines must be used by nobody else"
                )
            if waited_s > _SAY_AFTER_S and not is_told:
                is_told = True
                tell(f"waiting for the engines: {worker.name} {what}")
            # It has no way to tell us.
            await asyncio.sleep(_ASK_EVERY_S)


async def _holds(http: aiohttp.ClientSession, worker: Worker) -> str | None:
    """What it is not yet rid of, in words."""
    page = await told_by(http, worker)
    requests = page.total("vllm:num_requests_running") + page.total("vllm:num_requests_waiting")
    if requests:
        return f"still has {requests:.0f} requests"
    used = page.total("vllm:kv_cache_usage_perc")
    return f"still holds {100 * used:.2g} % of its KV" if used else None
