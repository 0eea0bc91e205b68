"""Reads a request's body: whole, within a size and a time, without buffering what is refused."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Message, Receive

from .errors import Headers, body_of

__all__ = ["Disconnected", "Refused", "linger", "read"]

# How much of a refused body is read and dropped before the connection is closed, so that a client that sends first and
# reads later still sees the answer instead of a reset.
_LINGER_BYTES: Final = 256 * 1024 * 1024
_LINGER_S: Final = 10.0


class Disconnected(Exception):  # noqa: N818
    """The client left before its body was complete."""


class Refused(Exception):  # noqa: N818
    """The body is not taken: `status` and an error object to answer with."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.content = content


def _too_large(size: int, limit: int) -> Refused:
    message = f"the request body has {size} bytes or more; the limit is {limit} (max_body_bytes)"
    return Refused(413, body_of(message, code="payload_too_large", status=413))


async def read(receive: Receive, headers: Headers, *, limit: int, timeout_s: float) -> bytes:
    """The body; raises Refused above `limit` bytes or after `timeout_s`, Disconnected if the client left."""
    for name, value in headers:
        if name == b"content-length":
            size = int(value) if value.isdigit() else limit + 1
            if size > limit:
                raise _too_large(size, limit)
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
            first = _piece(message)
            if not message.get("more_body", False):
                if len(first) > limit:
                    raise _too_large(len(first), limit)
                return first
            pieces, size = [first], len(first)
            while message.get("more_body", False):
                message = await receive()
                pieces.append(_piece(message))
                size += len(pieces[-1])
                if size > limit:
                    raise _too_large(size, limit)
    except TimeoutError:
        text = f"the request body did not arrive within {timeout_s:g} s; send it again"
        raise Refused(408, body_of(text, code="request_timeout", status=408)) from None
    return b"".join(pieces)


async def linger(receive: Receive) -> None:
    """Read and drop what the client still sends, within bounds."""
    dropped = 0
    try:
        async with asyncio.timeout(_LINGER_S):
            while dropped < _LINGER_BYTES:
                message = await receive()
                dropped += len(_piece(message))
                if not message.get("more_body", False):
                    return
    except (TimeoutError, Disconnected):
        return


def _piece(message: Message) -> bytes:
    if message["type"] != "http.request":
        raise Disconnected
    piece: bytes = message.get("body", b"")
    return piece
