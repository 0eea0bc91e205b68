"""`async with router.turn(...)` and `with ... timeout_s`: waiting in line."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable

import pytest

from conserve import (
    Decoder,
    Draining,
    ManualClock,
    NoWorkers,
    Overloaded,
    Prefiller,
    Rejected,
    Router,
    Turn,
    _wait,
)

MakeRouter = Callable[..., Router]


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def fill(router: Router, conversation: str = "filler") -> Turn:
    turn = router.turn(conversation, prompt_tokens=16 * 80).__enter__()
    turn.handed_over()
    return turn


async def enter(
    router: Router, conversation: str, prompt_tokens: int = 16, timeout_s: float | None = None
) -> str:
    async with router.turn(conversation, prompt_tokens=prompt_tokens, timeout_s=timeout_s) as turn:
        turn.finish(output_tokens=0)
    return turn.route.decoder


async def test_room_at_once_does_not_wait(make_router: MakeRouter) -> None:
    router = make_router()
    assert await enter(router, "task-42") == "http://d0:8000"
    assert await enter(router, "task-42") == "http://d0:8000"
    router.check()


async def test_waits_until_room_is_made(make_router: MakeRouter) -> None:
    router = make_router()
    filler = fill(router)
    waiting = asyncio.create_task(enter(router, "task-42"))
    await settle()
    assert not waiting.done()
    assert router.snapshot().waiting == 1
    filler.finish(output_tokens=0)
    router.close("filler")
    assert await waiting == "http://d0:8000"
    assert router.snapshot().waiting == 0
    router.check()


async def test_line_is_first_in_first_out(make_router: MakeRouter) -> None:
    router = make_router()
    fill(router).finish(output_tokens=0)
    order: list[int] = []

    async def wait(n: int) -> None:
        async with router.turn(f"task-{n}", prompt_tokens=16):
            order.append(n)

    tasks = []
    for n in range(20):
        tasks.append(asyncio.create_task(wait(n)))
        await settle()
    router.close("filler")
    await asyncio.gather(*tasks)
    assert order == list(range(20))
    router.check()


async def test_cancelling_leaves_the_line(make_router: MakeRouter) -> None:
    router = make_router()
    fill(router).finish(output_tokens=0)
    first = asyncio.create_task(enter(router, "task-1"))
    second = asyncio.create_task(enter(router, "task-2"))
    await settle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert router.snapshot().waiting == 1
    router.close("filler")
    await second
    assert router.conversation("task-1") is None
    router.check()


async def test_cancelling_what_was_just_let_in_gives_it_back(make_router: MakeRouter) -> None:
    router = make_router()
    fill(router).finish(output_tokens=0)
    waiting = asyncio.create_task(enter(router, "task-1", 16 * 80))
    behind = asyncio.create_task(enter(router, "task-2", 16 * 80))
    await settle()
    router.close("filler")  # grants task-1; its task has not run yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await behind == "http://d0:8000", "the place went to the next in line"
    assert router.conversation("task-1") is None
    router.check()


async def test_manual_deadline_expires_at_tick(make_router: MakeRouter, clock: ManualClock) -> None:
    router = make_router(queue_timeout_s=5.0)
    fill(router).finish(output_tokens=0)
    default = asyncio.create_task(enter(router, "task-1"))
    longer = asyncio.create_task(enter(router, "task-2", timeout_s=8.0))
    await settle()
    clock.advance(6)
    router.tick()
    with pytest.raises(Overloaded) as refused:
        await default
    assert refused.value.status == 429
    assert not longer.done()
    clock.advance(3)
    router.tick()
    with pytest.raises(Overloaded):
        await longer
    assert router.snapshot().waiting == 0
    router.check()


async def test_real_deadline_expires_by_itself(make_router: MakeRouter) -> None:
    # Real time: what is tested is the timer of the event loop.
    router = make_router(clock=None)
    fill(router).finish(output_tokens=0)
    began = time.monotonic()
    with pytest.raises(Overloaded):
        await enter(router, "task-1", timeout_s=0.05)
    assert 0.045 <= time.monotonic() - began < 5
    assert router.snapshot().waiting == 0


async def test_timeout_of_zero_answers_now(make_router: MakeRouter) -> None:
    router = make_router()
    fill(router).finish(output_tokens=0)
    with pytest.raises(Overloaded):
        await enter(router, "task-1", timeout_s=0)


async def test_full_line_sheds(make_router: MakeRouter) -> None:
    router = make_router(queue_limit=2)
    fill(router).finish(output_tokens=0)
    tasks = [asyncio.create_task(enter(router, f"task-{n}")) for n in range(2)]
    await settle()
    with pytest.raises(Overloaded):
        await enter(router, "one-too-many")
    router.close("filler")
    await asyncio.gather(*tasks)


async def test_followers_wait_for_the_handover(make_router: MakeRouter) -> None:
    router = make_router(decoders=4)
    placer = router.turn("task-42", prompt_tokens=160).__enter__()
    followers = [asyncio.create_task(enter(router, "task-42", 160)) for _ in range(3)]
    await settle()
    assert not any(f.done() for f in followers), "the KV is not at the decoder yet"
    placer.handed_over()
    assert await asyncio.gather(*followers) == [placer.route.decoder] * 3
    placer.finish(output_tokens=0)
    router.check()


async def test_follower_becomes_the_placer_when_the_placer_fails(make_router: MakeRouter) -> None:
    router = make_router()
    placer = router.turn("task-42", prompt_tokens=160).__enter__()

    async def follow() -> bool:
        async with router.turn("task-42", prompt_tokens=160) as turn:
            return turn.route.handoff

    follower = asyncio.create_task(follow())
    await settle()
    placer.fail("prefill_failed")
    assert await follower is True
    router.check()


async def test_a_worker_that_joins_lets_the_line_in(clock: ManualClock) -> None:
    router = Router([Prefiller("http://p0:8000")], clock=clock)
    waiting = asyncio.create_task(enter(router, "task-42"))
    await settle()
    router.join(Decoder("http://d9:8000", kv_blocks=100))
    assert await waiting == "http://d9:8000"


async def test_waiting_in_vain_says_what_was_missing(make_router: MakeRouter, clock: ManualClock) -> None:
    async def refusal(router: Router) -> Rejected:
        waiting = asyncio.create_task(enter(router, "task-42", timeout_s=1.0))
        await settle()
        clock.advance(2)
        router.tick()
        with pytest.raises(Rejected) as refused:
            await waiting
        return refused.value

    assert type(await refusal(make_router(decoders=0))) is NoWorkers
    router = make_router()
    fill(router).finish(output_tokens=0)
    assert type(await refusal(router)) is Overloaded
    router.drain("d0")
    assert type(await refusal(router)) is Draining
    router.lose("d0")
    assert type(await refusal(router)) is NoWorkers


async def test_cancelled_body_fails_the_turn(make_router: MakeRouter) -> None:
    router = make_router()
    inside = asyncio.Event()

    async def body() -> None:
        async with router.turn("task-42", prompt_tokens=160):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert router.conversation("task-42") is None
    assert sum(w.booked_blocks for w in router.snapshot().workers) == 0
    assert router.snapshot().counters["failed"] == 1


async def test_entering_unawaited_books_nothing(make_router: MakeRouter) -> None:
    router = make_router()
    entering = router.turn("task-42", prompt_tokens=160).__aenter__()
    del entering
    gc.collect()
    assert sum(w.booked_blocks for w in router.snapshot().workers) == 0
    router.check()


async def test_interrupt_during_a_wake_up_is_late_and_wakes(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = make_router()
    fill(router).finish(output_tokens=0)
    waiting = asyncio.create_task(enter(router, "task-42"))
    await settle()
    wake, interrupts = _wait._Waker.__call__, iter([KeyboardInterrupt])

    def interrupted(waker: _wait._Waker) -> None:
        for interrupt in interrupts:
            raise interrupt
        wake(waker)

    monkeypatch.setattr(_wait._Waker, "__call__", interrupted)
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        router.close("filler")
        assert await waiting == "http://d0:8000"
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_thread_waits_in_line_when_given_time(make_router: MakeRouter) -> None:
    router = make_router(clock=None)
    filler = fill(router)
    decoder: list[str] = []

    def wait() -> None:
        with router.turn("task-42", prompt_tokens=16, timeout_s=30) as turn:
            decoder.append(turn.route.decoder)

    thread = threading.Thread(target=wait)
    thread.start()
    while router.snapshot().waiting == 0:
        time.sleep(0.001)  # Until the thread is in line; there is nothing to wait on.
    filler.finish(output_tokens=0)
    router.close("filler")
    thread.join(timeout=20)
    assert decoder == ["http://d0:8000"]


def test_thread_may_wait_for_ages(make_router: MakeRouter) -> None:
    router = make_router(clock=None)
    filler = fill(router)

    def make_room() -> None:
        while router.snapshot().waiting == 0:
            time.sleep(0.001)  # Until the other thread is in line; there is nothing to wait on.
        filler.finish(output_tokens=0)
        router.close("filler")

    helper = threading.Thread(target=make_room)
    helper.start()
    with router.turn("task-42", prompt_tokens=16, timeout_s=1e15) as turn:
        assert turn.route.decoder == "http://d0:8000"
    helper.join(timeout=20)


def test_thread_gives_up_after_its_time(make_router: MakeRouter) -> None:
    # Real time: what is tested is the wait of the thread.
    router = make_router(clock=None)
    fill(router).finish(output_tokens=0)
    with pytest.raises(Overloaded), router.turn("task-42", prompt_tokens=16, timeout_s=0.05):
        pytest.fail("no room")
    assert router.snapshot().waiting == 0


def test_loops_in_several_threads_share_the_line(make_router: MakeRouter) -> None:
    """Each hand-off crosses threads: whoever closes wakes a task of another loop."""
    router = make_router(clock=None)
    done: list[str] = []

    async def agent(name: str) -> None:
        async with router.turn(name, prompt_tokens=16 * 80, timeout_s=60):
            await asyncio.sleep(0)
        router.close(name)
        done.append(name)

    async def agents(loop: int) -> None:
        await asyncio.gather(*(agent(f"loop-{loop}-task-{n}") for n in range(25)))

    threads = [threading.Thread(target=asyncio.run, args=(agents(loop),)) for loop in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(done) == 100, "no wake-up was lost: one conversation at a time fits"
    assert sum(w.booked_blocks for w in router.snapshot().workers) == 0
    router.check()


def test_tasks_of_a_dead_loop_leave_the_line(make_router: MakeRouter) -> None:
    router = make_router(clock=None)
    fill(router).finish(output_tokens=0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(enter(router, "task-1", timeout_s=600))
    loop.run_until_complete(settle())
    assert router.snapshot().waiting == 1
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # It is destroyed on purpose.
    del task, loop
    gc.collect()
    assert router.snapshot().waiting == 0
    router.close("filler")
    router.check()
