"""A client on a bare socket, for what no HTTP library lets one do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class RawClient:
    """One connection; bytes in, bytes out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's head: status and headers."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = text.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in headers.items()}

    def reset(self) -> None:
        """Leave at once."""
        self.writer.transport.abort()


def request(path: str, body: bytes, *headers: str, host: str = "test") -> bytes:
    """The bytes of a POST."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", *headers]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.asynccontextmanager
async def connect(url: str, *, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """Connect to a door; a small receive buffer makes a slow reader felt early."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=256 * 1024)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
