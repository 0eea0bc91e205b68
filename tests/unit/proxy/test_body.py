from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from conserve.proxy.body import Disconnected, Refused, linger, read


def receiving(*messages: dict[str, Any]) -> Any:
    left = list(messages)

    async def receive() -> MutableMapping[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    receive.left = left  # type: ignore[attr-defined]
    return receive


def piece(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_of_one_piece_is_not_copied() -> None:
    body = b"x" * 100
    assert await read(receiving(piece(body)), [], limit=100, timeout_s=1) is body


async def test_pieces_are_joined() -> None:
    receive = receiving(piece(b"ab", True), piece(b"", True), piece(b"c"))
    assert await read(receive, [], limit=3, timeout_s=1) == b"abc"


@pytest.mark.parametrize("length", [b"101", b"99999999999999999999", b"-1", b"1e3", b""])
async def test_a_length_above_the_limit_is_refused_before_anything_is_read(length: bytes) -> None:
    receive = receiving(piece(b"x" * 101))
    with pytest.raises(Refused) as refused:
        await read(receive, [(b"content-length", length)], limit=100, timeout_s=1)
    assert refused.value.status == 413
    assert json.loads(refused.value.content)["error"]["code"] == "payload_too_large"
    assert len(receive.left) == 1


@pytest.mark.parametrize("pieces", [[101], [100, 1], [60, 60]])
async def test_what_passes_the_limit_is_refused_when_it_does(pieces: list[int]) -> None:
    messages = [piece(b"x" * size, place < len(pieces) - 1) for place, size in enumerate(pieces)]
    with pytest.raises(Refused) as refused:
        await read(receiving(*messages), [], limit=100, timeout_s=1)
    assert refused.value.status == 413


async def test_a_client_that_leaves_ends_the_reading() -> None:
    with pytest.raises(Disconnected):
        await read(receiving(piece(b"a", True), {"type": "http.disconnect"}), [], limit=9, timeout_s=1)


async def test_a_body_that_stays_away_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        await read(receiving(piece(b"a", True)), [], limit=9, timeout_s=0.01)
    assert refused.value.status == 408


async def test_lingering_ends_with_the_body_or_the_client() -> None:
    receive = receiving(piece(b"a", True), piece(b"b"), piece(b"never read"))
    await linger(receive)
    assert len(receive.left) == 1
    await linger(receiving({"type": "http.disconnect"}))
