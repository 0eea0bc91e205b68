"""Waiting for a place in line: on an event loop or on a thread, without polling.

The core wakes a ticket when its turn may have come; `take` then says what came of it. The order below is what loses no
wake-up: first say whom to wake, then look, then wait.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from conserve._core import Turn

__all__ = ["future", "in_line", "in_line_blocking"]


class Ticket(Protocol):
    """A place in line, as the extension hands it over."""

    def on_ready(self, wake: Callable[[], object], /) -> None:
        """Call `wake`, from any thread, when `take` is worth calling; a later call replaces an earlier one."""

    def take(self) -> Turn | None:
        """The turn if it was let in, None while it waits; raises what it was refused with."""

    def remaining_s(self) -> float | None:
        """Seconds until the ticket expires; None where only `Router.tick` expires it (a manual clock)."""

    def leave(self) -> None:
        """Give up the place and whatever was granted but not taken."""


async def in_line(ticket: Ticket) -> Turn:
    """The turn, once it is let in. Cancelling leaves the line."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            ready = future(loop, ticket.on_ready, None)
            turn = ticket.take()
            if turn is not None:
                return turn
            remaining_s = ticket.remaining_s()
            timer = (
                None if remaining_s is None else loop.call_later(remaining_s, _resolve, weakref.ref(ready))
            )
            try:
                await ready
            finally:
                if timer is not None:
                    timer.cancel()
    finally:
        ticket.leave()


def in_line_blocking(ticket: Ticket) -> Turn:
    """The turn, once it is let in; blocks this thread."""
    try:
        while True:
            ready = threading.Event()
            ticket.on_ready(ready.set)
            turn = ticket.take()
            if turn is not None:
                return turn
            remaining_s = ticket.remaining_s()
            ready.wait(None if remaining_s is None else min(remaining_s, threading.TIMEOUT_MAX))
    finally:
        ticket.leave()


def future(
    loop: asyncio.AbstractEventLoop, on_ready: Callable[[Callable[[], object]], None], timeout_s: float | None
) -> asyncio.Future[None]:
    """A future of `loop` that is done when `on_ready`'s waker is called, or after `timeout_s`."""
    ready: asyncio.Future[None] = loop.create_future()
    if timeout_s is not None:
        timer = loop.call_later(timeout_s, _resolve, weakref.ref(ready))
        ready.add_done_callback(lambda _: timer.cancel())
    on_ready(_Waker(loop, ready))
    return ready


class _Waker:
    """Resolves a future of a loop from any thread.

    The reference is weak: the core holds the waker, the future leads to the task and the task to the ticket. A strong
    one would keep the places of a dead loop's tasks in line for ever.
    """

    __slots__ = ("_loop", "_ready")

    def __init__(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
        self._loop = loop
        self._ready = weakref.ref(ready)

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(_resolve, self._ready)
        except RuntimeError:
            # The loop is closed; nobody waits any more.
            return


def _resolve(ready: weakref.ref[asyncio.Future[None]]) -> None:
    waiting = ready()
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
