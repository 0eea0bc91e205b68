"""Heads of requests, on a bare socket: too long, too late, not HTTP, or offering another protocol."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.cluster import CHAT, chat_body
from tests.support.raw import connect, request

from .conftest import StartCluster

BODY = json.dumps(chat_body("hi")).encode()


async def test_a_head_without_an_end_is_refused_when_it_passes_the_limit(cluster: StartCluster) -> None:
    async with cluster() as c:
        for piece in (b"a" * 65_536, b"x-a: 1\r\n" * 8192):
            async with connect(c.url) as raw:
                await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-b: 1\r\nx-a: ")
                await raw.send(piece + piece)
                status, headers = await raw.head()
                content = json.loads(await raw.reader.readexactly(int(headers["content-length"])))
                assert (status, content["error"]["code"]) == (431, "headers_too_large")
        await c.nothing_booked()


@pytest.mark.parametrize("size", [66_000, 100_000])
async def test_a_head_over_the_limit_is_refused_though_it_is_whole(cluster: StartCluster, size: int) -> None:
    large = request(CHAT, BODY, "x-a: " + "b" * size)
    async with cluster(prefillers=0, decoders=1) as c:
        for before in (b"", request(CHAT, BODY)):
            async with connect(c.url) as raw, asyncio.timeout(20):
                await raw.send(before + large)
                if before:
                    status, headers = await raw.head()
                    assert status == 200, "the turn before it has its answer"
                    await raw.reader.readexactly(int(headers["content-length"]))
                status, headers = await raw.head()
                content = json.loads(await raw.reader.readexactly(int(headers["content-length"])))
                assert (status, content["error"]["code"]) == (431, "headers_too_large")
                assert await raw.reader.read() == b""
        assert len(c.decoders[0].requests) == 1
        await c.settled()


async def test_a_head_that_does_not_arrive_ends_its_connection(cluster: StartCluster) -> None:
    async with cluster(body_timeout_s=0.1) as c:
        async with connect(c.url) as raw:
            await raw.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
            assert (await raw.head())[0] == 408
        async with connect(c.url) as silent, asyncio.timeout(10):
            assert await silent.reader.read() == b"", "who says nothing is told nothing"


async def test_the_time_for_a_head_does_not_cut_an_answer(cluster: StartCluster) -> None:
    async with cluster(body_timeout_s=0.1, worker={"default_tokens": 40}) as c, connect(c.url) as raw:
        slow = 'x-mock-fault: {"interval_s": 0.01}'
        body = json.dumps(chat_body("hi", stream=True)).encode()
        await raw.send(request(CHAT, body, slow) + b"POST /v1/chat")
        assert (await raw.head())[0] == 200
        async with asyncio.timeout(10):
            stream = await raw.reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert stream.count(b"data: ") > 40, "a late second request waits behind the first one's answer"


@pytest.mark.parametrize("parts", [1, 2], ids=["in one piece", "head first"])
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_an_offer_of_another_protocol_is_ignored(
    cluster: StartCluster, protocol: str, parts: int
) -> None:
    async with cluster(prefillers=0, decoders=1) as c, connect(c.url) as raw:
        offer = (f"upgrade: {protocol}", "connection: Upgrade, HTTP2-Settings", "http2-settings: AAMAAABk")
        whole = request(CHAT, BODY, *offer)
        cut = len(whole) - len(BODY)
        for piece in (whole,) if parts == 1 else (whole[:cut], whole[cut:]):
            await raw.send(piece)
            await asyncio.sleep(0.02 * (parts - 1))  # real time: two segments, not one
        status, headers = await raw.head()
        assert status == 200, "the body belongs to the request"
        await raw.reader.readexactly(int(headers["content-length"]))
        await raw.send(request(CHAT, BODY))
        assert (await raw.head())[0] == 200, "the connection goes on"


async def test_many_offers_in_one_write_are_served_one_after_the_other(cluster: StartCluster) -> None:
    many = 1_200
    one = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    async with cluster() as c, connect(c.url) as raw, asyncio.timeout(60):
        raw.writer.write(one * many)
        for _ in range(many):
            status, headers = await raw.head()
            assert status == 200
            await raw.reader.readexactly(int(headers["content-length"]))


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_who_cuts_a_body_and_still_reads_is_told(cluster: StartCluster, chunked: bool) -> None:
    cut = request(CHAT, b"5\r\nhel", "transfer-encoding: chunked") if chunked else request(CHAT, BODY)[:-5]
    async with cluster() as c, connect(c.url) as raw, asyncio.timeout(10):
        await raw.send(cut)
        raw.writer.write_eof()
        status, headers = await raw.head()
        content = json.loads(await raw.reader.readexactly(int(headers["content-length"])))
        assert (status, content["error"]["code"]) == (400, "invalid_body")
        assert await raw.reader.read() == b""
        await c.nothing_booked()


@pytest.mark.parametrize(
    "bad",
    [
        request(CHAT, BODY, f"content-length: {len(BODY)}", "content-length: 5"),
        request(CHAT, BODY, "x-a: b\r\n folded"),
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
    ],
    ids=["two lengths", "folded", "TLS"],
)
async def test_what_is_not_http_is_400_and_ends_the_connection(cluster: StartCluster, bad: bytes) -> None:
    async with cluster() as c, connect(c.url) as raw:
        await raw.send(bad)
        status, headers = await raw.head()
        content = json.loads(await raw.reader.readexactly(int(headers["content-length"])))
        assert (status, content["error"]["code"]) == (400, "invalid_http")
        assert await raw.reader.read() == b""
        await c.nothing_booked()


@pytest.mark.parametrize(
    "bad",
    [
        request(CHAT, b"0\r\n\r\n", "transfer-encoding: xchunked"),
        request(CHAT, b"fffffffffffffffff\r\nx", "transfer-encoding: chunked"),
        request(CHAT, b"0x5\r\nhello\r\n0\r\n\r\n", "transfer-encoding: chunked"),
        request(CHAT, b"5\nhello\n0\n\n", "transfer-encoding: chunked"),
        request(CHAT, b"5;" + b"a" * 1_000_000, "transfer-encoding: chunked"),
        request(CHAT, BODY, f"content-length: +{len(BODY)}"),
        request(CHAT, BODY, f"content-length: {len(BODY)}, {len(BODY)}"),
        request(CHAT, BODY, "x-a: b\0c"),
        request(CHAT, BODY, "x-a: b\rcontent-length: 1"),
    ],
    ids=[
        "no coding",
        "too large",
        "hex",
        "line feeds",
        "extension",
        "plus",
        "list",
        "NUL",
        "carriage return",
    ],
)
async def test_framing_that_others_read_otherwise_is_refused(cluster: StartCluster, bad: bytes) -> None:
    async with cluster() as c, connect(c.url) as raw, asyncio.timeout(20):
        await raw.send(bad + request(CHAT, BODY))
        assert (await raw.head())[0] == 400
        assert b"HTTP/1.1 2" not in await raw.reader.read(), "nothing behind it is served"
        assert not any(mock.requests for mock in c.workers)
        await c.settled()


@pytest.mark.parametrize("framing", [(0, 1), (1, 0)], ids=["length and chunked", "chunked and length"])
async def test_nothing_is_served_behind_a_request_with_two_ends(
    cluster: StartCluster, framing: tuple[int, int]
) -> None:
    headers = ("content-length: 5", "transfer-encoding: chunked")
    async with cluster() as c, connect(c.url) as raw:
        await raw.send(
            request(CHAT, b"0\r\n\r\n", *(headers[place] for place in framing)) + request(CHAT, BODY)
        )
        assert (await raw.head())[0] == 400
        assert b"HTTP/1.1 2" not in await raw.reader.read(), (
            "who reads it by its length sees no second answer"
        )
        assert not any(mock.requests for mock in c.workers)
        await c.nothing_booked()
