"""How the door reads HTTP: uvicorn's protocol, with bounds on a request's head and no way out of HTTP/1.1.

Promises: a head is complete within a size and a time, or its connection ends; so does the connection of a client that
takes nothing of what is written, whatever was decided about its request; a client that leaves is noticed while it is
answered, though it sent more requests before, up to a limit; a request that offers an upgrade (Java's client offers
HTTP/2 by itself) is served as if it had not; what is not HTTP is answered with an error object, after the answers to the
requests before it.
Leaves to others: bodies (`body`), everything behind the head (uvicorn).
"""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .errors import body_of

__all__ = ["BoundedProtocol", "bounded"]

logger = logging.getLogger(__name__)

# As much as workers take: aiohttp and uvicorn's h11 stop at 64 KiB too.
_HEAD_LIMIT_BYTES: Final = 64 * 1024
# How much of the requests behind the one that is answered is read to see whether their client is still there. Of a client
# that sent more, the rest stays in the socket, and its leaving behind that.
_AHEAD_LIMIT_BYTES: Final = 1 << 20
# What is parsed at once of the bytes that waited: uvicorn makes objects of all the requests in there.
_AHEAD_PIECE_BYTES: Final = 64 * 1024
# The driver, which lets go of the worker and says why, comes first.
_STALL_GRACE_S: Final = 0.5
_OF_UPGRADES: Final = (b"upgrade", b"http2-settings")


class _RefusedError(Exception):
    """A request is not read on; its client is told."""


class _Flow(FlowControl):
    """uvicorn's, which reads on whenever a request asks for its body; not while enough waits behind that request."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Made by `bounded`, which says how long its client may take."""

    head_timeout_s: ClassVar[float] = 60.0
    stall_timeout_s: ClassVar[float] = 120.0
    flow: _Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected; its first head is due."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._offers_upgrade = False
        # The request that is answered; uvicorn's `cycle` is the one read last.
        self._answered: RequestResponseCycle | None = None
        self._ahead = bytearray()
        # What the client is told once it has the answers to its earlier requests; nothing is read on until then.
        self._refusal: bytes | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        self._client_reads()
        if (answered := self._answered) is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client sends no more. It counts as gone, but may read why a request that it cut is not served."""
        if self._is_answering() and not self._is_ahead():
            self._refuse(400, "invalid_body", "the request's body ends before its time; send it whole")

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        # Closing would wait until it has read the rest.
        after_s = self.stall_timeout_s + _STALL_GRACE_S
        self._stall_timer = self.loop.call_later(after_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        self._client_reads()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Read on. What is behind the request that is answered waits here, where uvicorn would stop reading."""
        if self._refusal is not None:
            return
        if self._is_ahead():
            self._ahead += data
            self.flow.is_full = len(self._ahead) >= _AHEAD_LIMIT_BYTES
            if self.flow.is_full:
                self.flow.pause_reading()
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._expect_head()
        self._feed(data)
        if self._is_ahead():
            # uvicorn stopped: for a request that has to wait, or for a body until somebody takes it.
            self.flow.resume_reading()
        if self._in_head and self._head_bytes > _HEAD_LIMIT_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = True
        self._offers_upgrade = False

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._stop_timer()
        # What `data_received` counts is of use for a head that has no end.
        if (
            len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            > _HEAD_LIMIT_BYTES
        ):
            self._refuse_head()
            raise _RefusedError
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            # Begun in `_without_upgrade`: the parser takes the body for bytes of the new protocol.
            self._offers_upgrade = True
            return
        self._in_head = False
        # Raises with a target that is no path, as of CONNECT.
        super().on_headers_complete()
        if not self.pipeline:
            self._answered = self.cycle

    def on_message_complete(self) -> None:
        """The body is whole."""
        if not self._offers_upgrade:
            self._in_head = True
            self._head_bytes = 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is written: the next request is served, and read on if it is not whole yet."""
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._refusal is not None:
            if not self._is_answering() and not self.transport.is_closing():
                self._end_with(self._refusal)
            return
        while self._ahead and not self._is_ahead() and not self.transport.is_closing():
            piece = bytes(self._ahead[:_AHEAD_PIECE_BYTES])
            del self._ahead[:_AHEAD_PIECE_BYTES]
            self.data_received(piece)
        if self.flow.is_full and len(self._ahead) < _AHEAD_LIMIT_BYTES:
            self.flow.is_full = False
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(400, "invalid_http", msg)

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    if not self._offers_upgrade:
                        return
                    rest = rest[offer.args[0] :]
                    self._without_upgrade()
        except httptools.HttpParserError as error:
            if self.transport.is_closing() or self._refusal is not None:
                return
            logger.info("a request that is not HTTP was refused: %s", type(error).__name__)
            self.send_400_response("the request cannot be read as HTTP/1.1; see the client's HTTP library")

    def _without_upgrade(self) -> None:
        """Read the head again as if it had offered nothing: RFC 9110 lets a server ignore an upgrade."""
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token.lower() not in _OF_UPGRADES)
            if name not in _OF_UPGRADES and (kept or not value):
                head += [name, b": ", kept, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"".join([*head, b"\r\n"]))

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_answering():
            # The head of a request behind the one that is being answered; it may wait as long as that one.
            self._expect_head()
        elif self._head_bytes:
            text = f"the request's head did not arrive within {self.head_timeout_s:g} s; send it again"
            self._refuse(408, "request_timeout", text)
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _client_reads(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _is_answering(self) -> bool:
        return self._answered is not None and not self._answered.response_complete

    def _is_ahead(self) -> bool:
        """What comes now belongs to a request behind the one that is answered."""
        answered = self._answered
        if answered is None or answered.response_complete:
            return False
        return answered is not self.cycle or not answered.more_body

    def _has_begun(self) -> bool:
        """Bytes of an answer are on their way."""
        answered = self._answered
        return answered is not None and answered.response_started and not answered.response_complete

    def _refuse_head(self) -> None:
        text = f"the request's head is larger than {_HEAD_LIMIT_BYTES} bytes; send shorter headers"
        self._refuse(431, "headers_too_large", text)

    def _refuse(self, status: int, code: str, text: str) -> None:
        """Answer once the requests before have their answers, unless that to this one has begun, and close."""
        self._stop_timer()
        if self.transport.is_closing() or self._refusal is not None:
            return
        content = body_of(text, code=code, status=status)
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        refusal = STATUS_LINE[status] + headers % len(content) + content
        if self._is_ahead():
            self._refusal = refusal
            self._drop_unfinished()
        else:
            self._end_with(b"" if self._has_begun() else refusal)

    def _drop_unfinished(self) -> None:
        """Serve only what came whole: the last request may wait behind others while its body is read."""
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()
            if self.pipeline:
                self.cycle = self.pipeline[0][0]
            elif self._answered is not None:
                self.cycle = self._answered

    def _end_with(self, words: bytes) -> None:
        self.transport.write(words)
        self.transport.close()


def bounded(*, head_timeout_s: float, stall_timeout_s: float) -> type[BoundedProtocol]:
    """The protocol for `uvicorn.Config(http=...)`."""
    limits = {"head_timeout_s": head_timeout_s, "stall_timeout_s": stall_timeout_s}
    return type("BoundedProtocol", (BoundedProtocol,), limits)
