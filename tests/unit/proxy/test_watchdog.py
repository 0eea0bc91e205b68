from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from conserve.proxy.watchdog import Watchdog


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock is moved by hand; what is due runs when it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.timers.append(handle)
        return handle

    def move(self, seconds: float) -> None:
        self.now_s += seconds
        for handle in [timer for timer in self.timers if timer.when() <= self.now_s]:
            self.timers.remove(handle)
            if not handle.cancelled():
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass


def watchdog() -> tuple[Loop, Watchdog, list[str]]:
    loop = Loop()
    barked: list[str] = []
    dog = Watchdog(loop, lambda: barked.append(str(dog.fired)))
    return loop, dog, barked


def test_it_barks_once_for_the_party_that_is_late() -> None:
    loop, dog, barked = watchdog()
    dog.expect("worker", 5.0)
    loop.move(4.9)
    assert barked == []
    loop.move(0.2)
    assert barked == ["worker"]
    loop.move(100.0)
    assert barked == ["worker"]
    loop.close()


def test_each_piece_begins_the_wait_anew_without_a_new_timer() -> None:
    loop, dog, barked = watchdog()
    for _ in range(100):
        dog.expect("worker", 5.0)
        loop.move(0.1)
        dog.expect("client", 9.0)
        loop.move(0.1)
    assert barked == []
    assert len(loop.timers) == 1
    dog.expect("client", 9.0)
    loop.move(9.1)
    assert barked == ["client"]
    loop.close()


def test_a_shorter_wait_is_not_held_up_by_a_longer_one() -> None:
    loop, dog, barked = watchdog()
    dog.expect("worker", 100.0)
    dog.expect("worker", 1.0)
    loop.move(1.1)
    assert barked == ["worker"]
    loop.close()


def test_at_rest_and_when_closed_it_is_silent() -> None:
    loop, dog, barked = watchdog()
    dog.expect("worker", 1.0)
    dog.rest()
    loop.move(10.0)
    dog.expect("worker", 1.0)
    dog.close()
    loop.move(10.0)
    assert barked == []
    loop.close()
