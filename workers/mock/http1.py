"""Just enough of an HTTP/1.1 server for a worker that misbehaves on purpose.

One `Connection` for each socket reads requests and runs the handler for one at a time; a `Reply` writes the answer and
carries out the byte-exact part of a `Fault`. A client that leaves cancels the handler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import cast

from .fault import NONE, Fault
from .record import Recorded

_HEAD_LIMIT = 256 * 1024
_PAUSE_S = 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request with its whole body."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Cut(Exception):  # noqa: N818
    """The fault took the connection away; the handler has nothing more to write."""


class Gone(Cut):
    """The client took the connection away."""


class Reply:
    """Writes one answer, doing to it what its fault says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._chunked = False
        self.fault: Fault = NONE
        self.record: Recorded | None = None
        self.sent_bytes = 0

    async def head(
        self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None = None
    ) -> None:
        """Write the status line and headers; without `length` the body is chunked."""
        if self.fault.reset_at == 0 or self.fault.close_at == 0:
            self._cut()
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in (*headers, *self.fault.headers.items())]
        self._chunked = length is None
        lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
        await self._connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def write(self, data: bytes) -> None:
        """Write a piece of the body, split and cut where the fault says."""
        step = self.fault.split or len(data)
        for start in range(0, len(data), step or 1):
            piece = data[start : start + step]
            for limit in (
                self.fault.reset_at,
                self.fault.close_at,
                self.fault.stall_at,
                self.fault.garbage_at,
            ):
                if limit is not None and self.sent_bytes + len(piece) >= limit:
                    await self._raw(piece[: limit - self.sent_bytes])
                    if limit == self.fault.garbage_at:
                        await self._connection.send(b"these bytes are no chunk\r\n")
                    if limit in (self.fault.stall_at, self.fault.garbage_at):
                        await asyncio.Event().wait()
                    self._cut()
            pause = self.fault.pause_at
            if pause is not None and self.sent_bytes < pause < self.sent_bytes + len(piece):
                head = pause - self.sent_bytes
                await self._raw(piece[:head])
                await asyncio.sleep(_PAUSE_S)
                piece = piece[head:]
            await self._raw(piece)
            if self.fault.split:
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Finish a chunked body."""
        if self._chunked:
            await self._connection.send(b"0\r\n\r\n")

    async def whole(self, status: int, body: bytes, *, content_type: str = "application/json") -> None:
        """Write a complete answer."""
        headers = [("content-type", content_type)]
        if self.fault.gzip:
            body = gzip.compress(body)
            headers.append(("content-encoding", "gzip"))
        await self.head(status, headers, length=len(body))
        await self.write(body)

    async def _raw(self, piece: bytes) -> None:
        if piece:
            self.sent_bytes += len(piece)
            if self.record is not None:
                self.record.sent_bytes = self.sent_bytes
            await self._connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def _cut(self) -> None:
        self._connection.cut(reset=self.fault.reset_at is not None)
        raise Cut


Handler = Callable[[Request, Reply], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client's connection: parses, queues, answers in order."""

    def __init__(self, handler: Handler, open_connections: set[Connection], all_gone: asyncio.Event) -> None:
        self._handler = handler
        self._open = open_connections
        self._all_gone = all_gone
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        self._all_gone.clear()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client left: whatever is being answered is of no use."""
        self._open.discard(self)
        self._writable.set()
        if not self._open:
            self._all_gone.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Bytes of one request or of several."""
        self._buffer += data
        if self._task is None or self._task.done():
            self._next()

    def cut(self, *, reset: bool) -> None:
        """Drop the connection: with RST, or with FIN once what was written is out."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if reset:
            sock: socket.socket | None = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()

    async def send(self, data: bytes) -> None:
        """Write, and wait while the client reads slower than we write."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Gone
        transport.write(data)
        if not self._writable.is_set():
            await self._writable.wait()

    def _next(self) -> None:
        request = self._parse()
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            await self._handler(request, Reply(self))
        except Cut:
            return
        asyncio.get_running_loop().call_soon(self._next_if_free)

    def _next_if_free(self) -> None:
        transport, task = self._transport, self._task
        if (
            self._buffer
            and task is not None
            and task.done()
            and transport is not None
            and not transport.is_closing()
        ):
            self._next()

    def _parse(self) -> Request | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                self.cut(reset=False)
            return None
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        method, target, _ = first.decode("latin-1").split(" ", 2)
        headers = [
            (name.strip().lower(), value.strip())
            for name, _, value in (line.partition(b":") for line in lines)
        ]
        known = dict(headers)
        start = end + 4
        if known.get(b"transfer-encoding", b"").lower() == b"chunked":
            parsed = _chunks(self._buffer, start)
            if parsed is None:
                return None
            body, stop = parsed
        else:
            stop = start + int(known.get(b"content-length", b"0"))
            if len(self._buffer) < stop:
                return None
            body = bytes(self._buffer[start:stop])
        del self._buffer[:stop]
        return Request(method, target.partition("?")[0], headers, body)


def _chunks(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """The chunked body that begins at `start` and the offset behind it; None while it is incomplete."""
    body = bytearray()
    while True:
        line = buffer.find(b"\r\n", start)
        if line < 0:
            return None
        size = int(bytes(buffer[start:line]).partition(b";")[0], 16)
        stop = line + 2 + size + 2
        if len(buffer) < stop:
            return None
        if size == 0:
            return bytes(body), stop
        body += buffer[line + 2 : line + 2 + size]
        start = stop
