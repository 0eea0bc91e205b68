"""The door's HTTP client: one session for each app, bytes as they come, each failure under one of few names.

Leaves to others: what to send and what a failure means (`Dispatch`), when to give up waiting (`driver`).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import ssl
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import aiohttp
from aiohttp import payload
from multidict import CIMultiDict
from yarl import URL

from .errors import Headers

if TYPE_CHECKING:
    from conserve._core import Upstream

__all__ = ["Failure", "TooLargeError", "Upstreams", "is_ours", "kind_of", "lower", "read_whole", "said"]

Failure: TypeAlias = Literal[
    "connect",
    "unreachable",
    "no_socket",
    "reset",
    "connect_timeout",
    "first_byte_timeout",
    "idle_timeout",
    "too_large",
    "protocol",
]

# Engines behind uvicorn close a connection that was idle for five seconds. Ours must go first: a request sent into a
# connection that is being closed is lost.
_KEEP_ALIVE_S: Final = 4.0
_READ_BUFFER_BYTES: Final = 64 * 1024
_HEADER_LIMIT_BYTES: Final = 64 * 1024
# What keeps us from asking.
_OURS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))


class TooLargeError(Exception):
    """An answer that was to be held in memory is larger than allowed."""


class Upstreams:
    """The connections to the workers. Open and close it on the event loop that uses it."""

    def __init__(self, *, trust: ssl.SSLContext | None = None) -> None:
        trace: aiohttp.TraceConfig = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_reused)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                limit_per_host=0,
                keepalive_timeout=_KEEP_ALIVE_S,
                ttl_dns_cache=30,
                ssl=trust or True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_HEADER_LIMIT_BYTES,
            max_field_size=_HEADER_LIMIT_BYTES,
            trace_configs=[trace],
        )
        self._bodies: dict[asyncio.Future[None], aiohttp.StreamReader] = {}

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def post(self, upstream: Upstream) -> aiohttp.ClientResponse:
        """Send the request; the response once its head is here, the body unread.

        A kept connection that its worker closed in the same moment is no failure of the worker: the request goes
        out once more, on a new connection.
        """
        reused = SimpleNamespace(connection=False)
        try:
            return await self._post(upstream, reused)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as broken:
            if not reused.connection or isinstance(broken, aiohttp.ClientConnectorError):
                raise
            return await self._post(upstream, reused)

    async def _post(self, upstream: Upstream, trace: SimpleNamespace) -> aiohttp.ClientResponse:
        response = await self._session.post(
            _url(upstream.url),
            headers=_text(upstream.headers),
            data=_Body(upstream.body),
            timeout=_timeout(upstream.connect_timeout_s),
            allow_redirects=False,
            trace_request_ctx=trace,
        )
        self._end_with_its_connection(response)
        return response

    def _end_with_its_connection(self, response: aiohttp.ClientResponse) -> None:
        """With bytes that are no chunk aiohttp closes a connection and tells nobody who waits for the body."""
        protocol = None if response.connection is None else response.connection.protocol
        closed = None if protocol is None else protocol.closed
        if closed is not None:
            if closed not in self._bodies:
                closed.add_done_callback(self._closed)
            self._bodies[closed] = response.content

    def _closed(self, closed: asyncio.Future[None]) -> None:
        body = self._bodies.pop(closed)
        if not closed.cancelled():
            closed.exception()  # seen: asyncio need not say it
        if not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection ended before the answer did"))

    async def get(self, url: str, *, timeout_s: float, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of a small GET, at most 16 MiB; raises what aiohttp raises, TimeoutError or TooLargeError."""
        async with asyncio.timeout(timeout_s):
            response = await self._session.get(_url(url), headers=headers, allow_redirects=False)
            try:
                return response.status, await read_whole(response, 16 * 1024 * 1024)
            finally:
                response.release()


async def read_whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The rest of the body; raises TooLargeError above `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        size += len(piece)
        if size > limit:
            raise TooLargeError(limit)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def kind_of(error: Exception) -> Failure | None:
    """The name of what went wrong between us and a worker; None for what is no failure of a worker."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "connect_timeout"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "connect"
        case aiohttp.ClientConnectorError() if is_ours(error):
            return "no_socket"
        case aiohttp.ClientConnectorError():
            return "unreachable"
        case TimeoutError():
            return "first_byte_timeout"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() | aiohttp.ClientPayloadError():
            return "reset"
        case TooLargeError():
            return "too_large"
        case aiohttp.ClientError() | aiohttp.http.HttpProcessingError():
            return "protocol"
        case OSError():
            return "reset"
        case _:
            return None


def is_ours(error: Exception) -> bool:
    """Whether a file, a local port or memory of ours was missing to connect with: that says nothing about the worker."""
    return isinstance(error, OSError) and error.errno in _OURS


def said(error: Exception) -> str:
    """What went wrong, in the fewest words."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno is not None:
        return os.strerror(error.os_error.errno).lower() if error.os_error.errno > 0 else str(error.os_error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def lower(headers: tuple[tuple[bytes, bytes], ...]) -> Headers:
    """A worker's headers in ASGI form."""
    return [(name.lower(), value) for name, value in headers]


class _Body(payload.BytesPayload):
    """A body that is written at once whatever its size; aiohttp warns above 1 MiB."""

    def __init__(self, body: bytes) -> None:
        super().__init__(b"", content_type="application/json")
        self._value = body
        self._size = len(body)


async def _reused(_: object, context: SimpleNamespace, __: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.connection = True


@functools.lru_cache(maxsize=4096)
def _url(url: str) -> URL:
    return URL(url, encoded=True)


@functools.lru_cache(maxsize=64)
def _timeout(connect_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s, sock_read=None)


def _text(headers: Headers) -> CIMultiDict[str]:
    made: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        made.add(name.decode("latin-1"), value.decode("utf-8", "replace"))
    return made
