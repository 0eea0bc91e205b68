"""`with router.turn(...)`: where turns run, what they book, how they are settled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from conserve import (
    ManualClock,
    NoWorkers,
    Overloaded,
    PromptTooLong,
    Router,
    WorkerProtocolError,
    WorkerTimeout,
    WorkerUnavailable,
)

MakeRouter = Callable[..., Router]


def booked(router: Router, name: str = "d0") -> int:
    return next(w.booked_blocks for w in router.snapshot().workers if w.name == name)


def run(router: Router, conversation: str, prompt_tokens: int, output_tokens: int = 0) -> str:
    with router.turn(conversation, prompt_tokens=prompt_tokens) as turn:
        turn.finish(output_tokens=output_tokens)
    return turn.route.decoder


def test_first_turn_is_handed_over_and_later_turns_stay(make_router: MakeRouter) -> None:
    router = make_router(decoders=3)
    with router.turn("task-42", prompt_tokens=160) as turn:
        first = turn.route
        turn.finish(output_tokens=16)
    assert (first.prefiller, first.handoff, first.turn, first.kind) == ("http://p0:8000", True, 1, "first")
    for n in range(2, 6):
        with router.turn("task-42", prompt_tokens=160 + 32 * n) as turn:
            route = turn.route
            assert (route.decoder, route.decoder_id) == (first.decoder, first.decoder_id), "one pin for life"
            assert (route.prefiller, route.handoff, route.turn, route.kind) == (None, False, n, "pinned")
            turn.finish(output_tokens=16)
    router.check()


def test_new_conversations_spread_over_decoders(make_router: MakeRouter) -> None:
    router = make_router(decoders=4)
    assert {run(router, f"task-{i}", 320) for i in range(4)} == {f"http://d{i}:8000" for i in range(4)}


def test_the_reason_carries_the_numbers_compared(make_router: MakeRouter) -> None:
    with make_router().turn("task-42", prompt_tokens=160) as turn:
        assert any(digit.isdigit() for digit in turn.route.reason), turn.route.reason


def test_blocks_are_booked_while_idle_and_freed_by_close(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-42", 160, 16)
    assert booked(router) == 11, "(160 + 16) / 16: its KV stays with the decoder between turns"
    view = router.conversation("task-42")
    assert view is not None
    assert (view.phase, view.turn, view.in_flight, view.blocks) == ("pinned", 1, 0, 11)
    assert router.close("task-42") is True
    assert booked(router) == 0
    assert router.conversation("task-42") is None
    assert router.close("task-42") is False
    router.check()


def test_closed_id_starts_a_new_conversation(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-42", 160)
    router.close("task-42")
    with router.turn("task-42", prompt_tokens=160) as turn:
        assert (turn.route.turn, turn.route.handoff) == (1, True)


def test_close_during_a_turn_frees_the_rest_when_it_settles(make_router: MakeRouter) -> None:
    router = make_router()
    with router.turn("task-42", prompt_tokens=160) as turn:
        turn.handed_over()
        assert router.close("task-42") is True
        turn.finish(output_tokens=16)
    assert booked(router) == 0
    router.check()


def test_tenants_never_meet(make_router: MakeRouter) -> None:
    router = make_router(decoders=2)
    run(router, "task-42", 160)
    with router.turn("task-42", prompt_tokens=160, tenant="acme") as turn:
        assert turn.route.turn == 1, "the same id of another tenant is another conversation"
    mine, theirs = router.conversation("task-42"), router.conversation("task-42", tenant="acme")
    assert mine is not None
    assert theirs is not None
    assert mine.key != theirs.key
    assert router.conversation("task-42", tenant="other") is None
    assert router.close("task-42", tenant="acme")
    assert router.conversation("task-42") is not None


def test_without_prefillers_the_decoder_prefills(make_router: MakeRouter) -> None:
    with make_router(prefillers=0).turn("task-42", prompt_tokens=160) as turn:
        assert (turn.route.prefiller, turn.route.handoff, turn.route.decoder) == (
            None,
            False,
            "http://d0:8000",
        )


def test_no_room_answers_now(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-1", 16 * 80)
    with pytest.raises(Overloaded) as refused, router.turn("task-2", prompt_tokens=16):
        pytest.fail("80 of 100 blocks are booked: the low watermark is reached")
    assert (refused.value.status, refused.value.code) == (429, "overloaded")
    assert 1 <= refused.value.retry_after_s <= 60
    assert router.conversation("task-2") is None, "a refused turn leaves nothing"
    assert booked(router) == 80
    router.check()


def test_pinned_turns_use_the_room_above_the_watermark(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-1", 16 * 80)
    assert run(router, "task-1", 16 * 100) == "http://d0:8000"
    assert booked(router) == 100
    with pytest.raises(PromptTooLong) as refused, router.turn("task-1", prompt_tokens=16 * 100 + 1):
        pytest.fail("101 blocks do not fit 100")
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert (refused.value.tokens, refused.value.limit) == (1601, 1600)
    router.check()


def test_long_prompt_is_admitted_on_an_empty_decoder(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-1", 16 * 95)
    assert booked(router) == 95, "above the low watermark, but nobody else was there"


def test_prefill_corrects_the_estimate(make_router: MakeRouter) -> None:
    router = make_router()
    with router.turn("task-42", prompt_tokens=1_000) as turn:
        assert booked(router) == 63
        turn.prefilled(160)
        assert booked(router) == 10
        turn.handed_over()
        turn.first_token()
    assert booked(router) == 10, "not finished by name: finished with what is known"
    router.check()


def test_exception_gives_the_booking_back(make_router: MakeRouter) -> None:
    router = make_router()
    with pytest.raises(ZeroDivisionError), router.turn("task-42", prompt_tokens=160):
        raise ZeroDivisionError
    assert booked(router) == 0
    assert router.conversation("task-42") is None, (
        "a first turn that never reached its decoder leaves nothing"
    )
    router.check()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncio.CancelledError(), "client_gone"),
        (TimeoutError(), "timeout"),
        (WorkerTimeout("d0 is silent"), "timeout"),
        (WorkerUnavailable("p0 is gone", phase="prefill"), "prefill_failed"),
        (WorkerProtocolError("d0 answered nonsense"), "decoder_error"),
        (KeyError(), "dropped"),
        (KeyboardInterrupt(), "dropped"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_exception_says_why_the_turn_failed(
    make_router: MakeRouter, error: BaseException, reason: str
) -> None:
    router = make_router()
    with pytest.raises(type(error)), router.turn("task-42", prompt_tokens=160):
        raise error
    failed = [line for line in router.metrics().splitlines() if "failed" in line and line.endswith(" 1")]
    assert len(failed) == 1, failed
    assert f'"{reason}"' in failed[0]


def test_exception_on_turn_n_keeps_the_pin(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-42", 160)
    with pytest.raises(asyncio.CancelledError), router.turn("task-42", prompt_tokens=320):
        raise asyncio.CancelledError(f"booked {booked(router)}")
    assert booked(router) == 10, "the growth of the turn that failed is returned"
    view = router.conversation("task-42")
    assert view is not None
    assert view.phase == "pinned"


def test_dropped_turn_gives_the_booking_back(make_router: MakeRouter) -> None:
    router = make_router()
    turn = router.turn("task-42", prompt_tokens=160).__enter__()
    assert booked(router) == 10
    del turn
    gc.collect()
    assert booked(router) == 0
    router.check()


def test_turn_is_settled_once(make_router: MakeRouter) -> None:
    router = make_router()
    with router.turn("task-42", prompt_tokens=160) as turn:
        before = turn.settled
        turn.finish(output_tokens=1)
        assert (before, turn.settled) == (False, True)
        for again in (
            turn.finish,
            turn.fail,
            turn.first_token,
            turn.handed_over,
            turn.reprefill,
            turn.effective,
        ):
            with pytest.raises(RuntimeError, match="settled"):
                again()
        with pytest.raises(RuntimeError, match="settled"):
            turn.prefilled(1)
    assert turn.route.turn == 1, "the route can be read afterwards"
    assert booked(router) == 11


def test_context_is_entered_once(make_router: MakeRouter) -> None:
    context = make_router().turn("task-42", prompt_tokens=160)
    with context:
        pass
    with pytest.raises(RuntimeError, match="entered"):
        context.__enter__()


def test_unknown_reason_of_failure_is_refused(make_router: MakeRouter) -> None:
    with make_router().turn("task-42", prompt_tokens=16) as turn:
        with pytest.raises(ValueError, match="client_gone"):
            turn.fail("bored")  # type: ignore[arg-type]
        turn.fail("decoder_error")


def test_failed_prefiller_is_replaced_and_the_decoder_stays(make_router: MakeRouter) -> None:
    router = make_router(prefillers=2)
    with router.turn("task-42", prompt_tokens=160) as turn:
        first = turn.route
        assert first.prefiller_id is not None
        second = turn.reprefill(avoid=[first.prefiller_id])
        assert second.prefiller not in (None, first.prefiller)
        assert second.prefiller_name is not None
        assert second.decoder == first.decoder
        last = turn.reprefill(avoid=[first.prefiller_id, second.prefiller_name])
        assert (last.prefiller, last.handoff, last.decoder) == (None, False, first.decoder)
        assert turn.route == last
    router.check()


def test_lost_decoder_relocates_the_conversation(make_router: MakeRouter) -> None:
    router = make_router(decoders=2)
    lost = run(router, "task-42", 160)
    name = lost.removeprefix("http://").removesuffix(":8000")
    router.lose(name, reason="refused")
    with router.turn("task-42", prompt_tokens=320) as turn:
        assert (turn.route.kind, turn.route.handoff, turn.route.turn) == ("relocated", True, 2)
        assert turn.route.decoder != lost
    health = {w.name: w.health for w in router.snapshot().workers}
    assert health == {"p0": "ready", name: "lost", turn.route.decoder_name: "ready"}
    router.check()


def test_drained_decoder_moves_at_the_next_turn(make_router: MakeRouter) -> None:
    router = make_router(decoders=2)
    with router.turn("task-42", prompt_tokens=160) as turn:
        turn.handed_over()
        router.drain(turn.route.decoder_name)
        turn.finish(output_tokens=0)
    with router.turn("task-42", prompt_tokens=160) as moved:
        assert (moved.route.kind, moved.route.decoder != turn.route.decoder) == ("relocated", True)
    router.check()


def test_relocate_unpins(make_router: MakeRouter) -> None:
    router = make_router()
    run(router, "task-42", 160)
    assert router.relocate("task-42") is True
    assert booked(router) == 0
    assert router.relocate("never-seen") is False
    with router.turn("task-42", prompt_tokens=160) as turn:
        assert turn.route.kind == "relocated"
    router.check()


def test_sweep_frees_idle_conversations(make_router: MakeRouter, clock: ManualClock) -> None:
    router = make_router(idle_timeout_s=60.0)
    run(router, "old", 160)
    clock.advance(50)
    run(router, "young", 160)
    clock.advance(20)
    swept = router.sweep()
    assert (swept.conversations, swept.blocks) == (1, 10)
    assert router.conversation("old") is None
    assert router.conversation("young") is not None
    router.check()


def test_times_of_a_conversation_are_on_the_routers_clock(
    make_router: MakeRouter, clock: ManualClock
) -> None:
    router = make_router()
    clock.advance(10)
    with router.turn("task-42", prompt_tokens=160) as turn:
        clock.advance(2)
        turn.first_token()
        clock.advance(3)
        turn.effective()
        turn.finish(output_tokens=5)
    view = router.conversation("task-42")
    assert view is not None
    assert view.first_seen_s == pytest.approx(10)
    assert view.ttfet_s == pytest.approx(2), "its first token came 2 s after the request"
    assert view.last_used_s == pytest.approx(15)


def test_several_turns_of_one_conversation_share_the_pin(make_router: MakeRouter) -> None:
    router = make_router(decoders=4)
    with router.turn("task-42", prompt_tokens=160) as first:
        first.handed_over()
        with (
            router.turn("task-42", prompt_tokens=176) as second,
            router.turn("task-42", prompt_tokens=192) as third,
        ):
            assert {t.route.decoder for t in (first, second, third)} == {first.route.decoder}
            view = router.conversation("task-42")
            assert view is not None
            assert view.in_flight == 3
    router.check()


def test_empty_fleet_has_no_workers() -> None:
    with pytest.raises(NoWorkers) as refused, Router().turn("task-42", prompt_tokens=1):
        pytest.fail("there is no decoder")
    assert (refused.value.status, refused.value.code) == (503, "no_workers")
