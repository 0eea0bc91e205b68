"""HTTP/2 of the native door: by prior knowledge on the plain port, and within bounds."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from tests.support.cluster import CHAT, chat_body, run_cluster
from tests.support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    frame,
    request,
)
from tests.support.raw import connect

from .conftest import open_native

BODY = json.dumps(chat_body("hi")).encode()
STREAM = json.dumps(chat_body("hi", stream=True)).encode()


async def test_turns_and_control_paths_share_one_http2_connection() -> None:
    async with run_cluster(open_native, decoders=1) as c, connect(c.url) as raw, asyncio.timeout(20):
        http = Http2(raw.reader, raw.writer)
        await http.start()
        await http.send(
            request(1, CHAT, BODY)
            + request(3, CHAT, STREAM)
            + request(5, "/healthz")
            + request(7, "/v1/fleet")
        )
        answers = await http.answers(1, 3, 5, 7)
        assert all(is_ok for is_ok, _ in answers.values()), answers
        assert json.loads(answers[1][1])["choices"]
        assert answers[3][1].endswith(b"data: [DONE]\n\n")
        assert len(json.loads(answers[7][1])["workers"]) == 2
        assert await c.metric("conserve_door_requests_total", status="200") == 2
        await c.settled()


async def test_a_preface_in_pieces_is_http2_all_the_same() -> None:
    async with run_cluster(open_native, decoders=1) as c, connect(c.url) as raw, asyncio.timeout(20):
        http = Http2(raw.reader, raw.writer)
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":
            await http.send(bytes((byte,)))
            await asyncio.sleep(0)
        await http.send(frame(SETTINGS, 0, 0) + request(1, CHAT, BODY))
        assert (await http.answers(1))[1][0]


async def test_a_stream_that_its_client_resets_leaves_nothing_booked() -> None:
    async with run_cluster(open_native, decoders=1, worker={"default_tokens": 10_000}) as c:
        async with connect(c.url) as raw, asyncio.timeout(20):
            http = Http2(raw.reader, raw.writer)
            await http.start()
            slow = '{"interval_s": 0.01}'
            await http.send(request(1, CHAT, STREAM, x_mock_fault=slow))
            while (got := await http.next()) is None or got.kind != DATA:
                assert got is not None
            await http.send(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
            await c.settled()
            await http.send(request(3, CHAT, json.dumps(chat_body("hi", max_tokens=2)).encode()))
            assert (await http.answers(3))[3][0], "the other streams of the connection go on"


async def test_rapid_resets_end_the_connection_and_not_the_door() -> None:
    async with run_cluster(open_native, decoders=1) as c:
        async with connect(c.url) as raw, asyncio.timeout(20):
            http = Http2(raw.reader, raw.writer)
            await http.start()
            flood = b"".join(
                request(stream, CHAT, BODY) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                for stream in range(1, 4001, 2)
            )
            is_ended = False
            try:
                await http.send(flood)
                while (got := await http.next()) is not None:
                    is_ended = is_ended or got.kind == GOAWAY
            except ConnectionError:
                is_ended = True
            assert is_ended
        await c.settled()
        assert (await c.chat("hi")).status == 200


async def test_more_streams_than_are_allowed_are_refused_one_by_one() -> None:
    async with run_cluster(open_native, decoders=1) as c, connect(c.url) as raw, asyncio.timeout(30):
        http = Http2(raw.reader, raw.writer)
        await http.start()
        first = await http.next()
        assert first is not None
        assert first.kind == SETTINGS
        told = {
            int.from_bytes(first.content[at : at + 2]): int.from_bytes(first.content[at + 2 : at + 6])
            for at in range(0, len(first.content), 6)
        }
        assert told[3] == 256, "MAX_CONCURRENT_STREAMS"
        await http.send(frame(SETTINGS, ACK, 0))
        # Each is open: none has ended its body.
        for stream in range(1, 2 * 256 + 2, 2):
            whole = request(stream, CHAT, BODY)
            await http.send(whole[: -len(BODY) - 9])
        while (got := await http.next()) is not None and got.kind != RST_STREAM:
            pass
        assert got is not None
        assert (got.stream, got.content) == (513, b"\0\0\0\x07"), "REFUSED_STREAM"
        await http.send(frame(DATA, END_STREAM, 1, BODY))
        assert (await http.answers(1))[1][0]


async def test_a_flood_of_pings_that_nobody_reads_does_not_grow_the_door() -> None:
    async with run_cluster(open_native, decoders=1) as c:
        async with connect(c.url, receive_buffer_bytes=4096) as raw:
            http = Http2(raw.reader, raw.writer)
            await http.start()
            pings = frame(PING, 0, 0, b"12345678") * 4096
            sent = 0
            try:
                async with asyncio.timeout(3):
                    while sent < 64 << 20:
                        await http.send(pings)
                        sent += len(pings)
            except (TimeoutError, ConnectionError):
                pass
            raw.reset()
            assert sent < 64 << 20, "a door that reads pings whose answers nobody takes keeps them"
        assert (await c.chat("hi")).status == 200


def settings(**values: int) -> bytes:
    names = {"header_table_size": 1, "initial_window_size": 4}
    return frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HI", names[name], value) for name, value in values.items())
    )


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "streamed"])
async def test_a_client_that_gives_a_stream_no_room_is_let_go_and_its_others_are_served(body: bytes) -> None:
    worker = {"default_tokens": 100}
    async with (
        run_cluster(open_native, prefillers=0, decoders=1, worker=worker, client_stall_timeout_s=0.3) as c,
        connect(c.url) as raw,
        asyncio.timeout(20),
    ):
        http = Http2(raw.reader, raw.writer)
        await http.send(PREFACE + settings(initial_window_size=0) + request(1, CHAT, body))
        hanging = await c.decoders[0].arrived(1)
        await hanging.done.wait()
        await c.settled()
        counted = await c.metric("conserve_door_requests_total")
        assert counted == 1, "its request is over, though the client never took the answer"
        assert await c.metric("conserve_door_requests_total", status="499") == (1 if body is STREAM else 0)
        # The connection lives: it answers, and with room it serves.
        await http.send(frame(PING, 0, 0, b"12345678"))
        while (got := await http.next()) is not None and got.kind != PING:
            pass
        assert got is not None
        await http.send(request(3, CHAT, BODY) + frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 1 << 20)))
        ended = {}
        while 3 not in ended:
            got = await http.next()
            assert got is not None
            if got.stream and got.flags & END_STREAM:
                ended[got.stream] = got
        await c.settled()


def head_of(size: int) -> bytes:
    """A head of one field of so many bytes, repeated by its index: small on the wire, large when read."""
    name, value = b"x-large", b"a" * size
    literal = b"\x40" + bytes((len(name),)) + name + b"\x7f" + number(size - 127) + value
    indexed = bytes((0x80 | 62,))
    plain = b"\x82\x84\x86"
    return plain + literal + indexed * 8_000


def number(value: int) -> bytes:
    """The rest of an HPACK integer."""
    found = b""
    while value >= 128:
        found += bytes((value % 128 | 128,))
        value //= 128
    return found + bytes((value,))


FLOODS: dict[str, tuple[bytes, bytes]] = {
    # Its start, and what is said again and again.
    "settings": (b"", settings(header_table_size=4096) * 512),
    "window updates": (b"", frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 512),
    "continuations": (frame(HEADERS, 0, 1, b"\x82\x84\x86"), frame(9, 0, 1, b"\x00\x01a\x01b" * 100) * 16),
    "empty continuations": (frame(HEADERS, 0, 1, b"\x82\x84\x86"), frame(9, 0, 1) * 1024),
    "a large head by few bytes": (b"", frame(HEADERS, END_HEADERS | END_STREAM, 1, head_of(4_000))),
    "empty data": (request(1, CHAT, BODY)[: -len(BODY) - 9], frame(DATA, 0, 1) * 1024),
    "unknown frames": (b"", frame(0x42, 0, 0, b"x" * 100) * 128),
    "priorities": (b"", frame(2, 0, 1, b"\0\0\0\0\x10") * 512),
}


@pytest.mark.parametrize("flood", list(FLOODS))
async def test_floods_cost_the_one_who_sends_them(flood: str) -> None:
    """Either the connection ends, or what is read is forgotten: the door serves others and keeps nothing."""
    start, again = FLOODS[flood]
    async with run_cluster(open_native, prefillers=0, decoders=1) as c:
        before = resident_mib()
        async with connect(c.url, receive_buffer_bytes=4096) as raw:
            http = Http2(raw.reader, raw.writer)
            sent = 0
            try:
                async with asyncio.timeout(3):
                    await http.send(PREFACE + settings() + start)
                    while sent < 48 << 20:
                        await http.send(again)
                        sent += len(again)
                        if sent % (1 << 20) < len(again):
                            assert (await c.get("/healthz")).status == 200, "others are served meanwhile"
            except (TimeoutError, ConnectionError):
                pass
            grown = resident_mib() - before
            assert grown < 32, f"{grown:.0f} MiB for {sent >> 20} MiB of {flood}"
            raw.reset()
        assert (await c.chat("hi")).status == 200
        await c.settled()


def resident_mib() -> float:
    """Of this process, which the door is part of."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024
