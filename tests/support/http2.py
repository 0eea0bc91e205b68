"""A client that speaks just enough HTTP/2 on a bare socket: literal headers, no window updates unless asked for."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    content: bytes


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return struct.pack(">I", len(content))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + content


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127, "longer ones need more than a byte of length"
    return bytes((len(data),)) + data


def request(stream: int, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The frames of a POST, or of a GET where there is no body."""
    fields = {":method": "POST" if body else "GET", ":scheme": "http", ":path": path, ":authority": "test"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
    if not body:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, head)
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    sent = frame(HEADERS, END_HEADERS, stream, head)
    for place, piece in enumerate(pieces):
        sent += frame(DATA, END_STREAM if place == len(pieces) - 1 else 0, stream, piece)
    return sent


class Http2:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def start(self) -> None:
        """Say what HTTP/2 begins with."""
        await self.send(PREFACE + frame(SETTINGS, 0, 0))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def next(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        try:
            head = await self.reader.readexactly(9)
            content = await self.reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return Frame(head[3], head[4], int.from_bytes(head[5:]) & 0x7FFF_FFFF, content)

    async def answers(self, *streams: int) -> dict[int, tuple[bool, bytes]]:
        """For each stream, once it ended: whether its status was 200, and its body."""
        is_ok: dict[int, bool] = {}
        bodies = dict.fromkeys(streams, b"")
        missing = set(streams)
        while missing:
            got = await self.next()
            assert got is not None, f"the connection ended before streams {missing}"
            assert got.kind != GOAWAY, got
            if got.stream not in bodies:
                continue
            assert got.kind != RST_STREAM, got
            if got.kind == HEADERS:
                is_ok[got.stream] = got.content[0] == 0x88  # the static table's `:status: 200`
            if got.kind == DATA:
                bodies[got.stream] += got.content
            if got.flags & END_STREAM:
                missing.discard(got.stream)
        return {stream: (is_ok[stream], bodies[stream]) for stream in streams}
