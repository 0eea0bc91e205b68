"""Uses that type-check under mypy --strict and basedpyright strict. Checked, not run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

# `assert_type` fails the checker, not the program.
from typing import Literal, assert_type

from conserve import (
    ConfigError,
    ConserveError,
    ConversationView,
    Decoder,
    ManualClock,
    Overloaded,
    Prefiller,
    PromptTooLong,
    Route,
    Router,
    Snapshot,
    Swept,
    Turn,
    Worker,
    WorkerError,
    WorkerView,
)


def build() -> Router:
    prefillers: list[Prefiller] = [Prefiller("http://p0:8000", name="p0", tier="h200")]
    decoders: Sequence[Decoder] = (Decoder("http://d0:8000", kv_blocks=40_000),)
    mixed: list[Decoder | Worker] = [*decoders, Worker("http://w0:8000", kv_blocks=1)]
    Router()
    Router(prefillers, decoders, policy="strict", idle_timeout_s=None, clock=ManualClock(1))
    return Router(prefillers=prefillers, decoders=mixed, low_watermark=1, queue_timeout_s=5, secret=b"0" * 16)


def now(router: Router) -> None:
    with router.turn("task-42", prompt_tokens=3_912, tenant="acme") as turn:
        assert_type(turn, Turn)
        assert_type(turn.route, Route)
        assert_type(turn.route.prefiller, str | None)
        assert_type(turn.route.kind, Literal["first", "pinned", "relocated"])
        turn.prefilled(3_900)
        turn.first_token()
        turn.finish(output_tokens=87, prompt_tokens=None, cached_tokens=0)


async def later(router: Router) -> Route:
    async with router.turn("task-42", prompt_tokens=1, timeout_s=2.0) as turn:
        assert_type(turn, Turn)
    try:
        async with asyncio.timeout(1), router.turn("task-42", prompt_tokens=1) as turn:
            turn.fail("client_gone")
    except Overloaded as refused:
        assert_type(refused.retry_after_s, float)
    except PromptTooLong as refused:
        assert_type(refused.limit, int)
    except WorkerError as failed:
        assert_type(failed.phase, Literal["prefill", "decode"])
    return turn.route


def look(router: Router) -> list[str]:
    assert_type(router.sweep(), Swept)
    assert_type(router.snapshot(), Snapshot)
    assert_type(router.conversation("task-42"), ConversationView | None)
    worker = router.join(Worker("http://w1:8000", kv_blocks=1))
    router.observe(worker, kv_usage=0.5, running=3)
    router.observe_metrics("w1", b"")
    router.lose(worker, reason="silent")
    rows: list[WorkerView] = router.snapshot().workers
    return [row.name for row in rows if row.health == "ready"]


def refuse() -> str:
    try:
        Router(low_watermark=2.0)
    except ValueError as error:
        return error.key if isinstance(error, ConfigError) else ""
    except ConserveError as error:
        return error.code
    return ""
