"""Mistakes that both checkers must catch: each `ignore` below is reported as unused if the checker takes the line."""

from __future__ import annotations

from conserve import Decoder, Prefiller, Router, Turn


def mistakes(router: Router, turn: Turn) -> None:
    Decoder("http://d0:8000", 40_000)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Prefiller("http://p0:8000", kv_blocks=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Router([Decoder("http://d0:8000")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Router(policy="best")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    router.turn("task-42")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    router.turn("task-42", 3_912)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    router.turn(b"task-42", prompt_tokens=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(router.turn("task-42", prompt_tokens=1).route)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    turn.fail("bored")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    turn.finish(87)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    turn.route.decoder = "http://d1:8000"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    turn.route.prefiller.upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


class Mine(Router):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """No class of the extension can be subclassed."""
