"""HTTP/2 of the native door: by prior knowledge on the plain port, and within bounds."""

from __future__ import annotations

import asyncio
import json

from tests.support.cluster import CHAT, chat_body, run_cluster
from tests.support.http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    PING,
    RST_STREAM,
    SETTINGS,
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
