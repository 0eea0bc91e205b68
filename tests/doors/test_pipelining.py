"""A client that sends requests before it has the answers to those before: served in order, gone when it leaves, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from conserve_workers.mock import Fault, MockWorker
from tests.support.certificates import make_certificate
from tests.support.cluster import CHAT, WAIT_S, OpenDoor, chat_body, run_cluster
from tests.support.raw import RawClient, connect, request

from .conftest import DOORS, StartCluster
from .test_process import MIB, forget_peak, memory_bytes, needs_clear_refs, serving

ABORT_S = 0.2
LARGE = 300_000
"""Bytes of a request that no door takes with one read."""


def turn(conversation: str, text: str = "hello", **fields: object) -> bytes:
    body = json.dumps(chat_body(text, **fields)).encode()
    return request(CHAT, body, f"x-conversation-id: {conversation}")


@pytest.mark.parametrize(
    "leave",
    [RawClient.reset, lambda raw: raw.writer.close(), lambda raw: raw.writer.write_eof()],
    ids=["resets", "closes", "sends no more"],
)
@pytest.mark.parametrize(
    "behind",
    [b"", turn("b"), turn("b")[:-10], turn("b", "x" * LARGE), b"no HTTP\r\n\r\n"],
    ids=["alone", "one", "part of one", "large", "garbage"],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_who_leaves_is_noticed_whatever_was_sent_behind(
    cluster: StartCluster, behind: bytes, later: bool, leave: Callable[[RawClient], None]
) -> None:
    async with cluster(prefillers=0, decoders=1) as c, connect(c.url) as raw:
        c.decoders[0].arm(Fault(stall_head=True))
        await raw.send(turn("a") if later else turn("a") + behind)
        stalled = await c.decoders[0].arrived(1)
        if later and behind:
            await raw.send(behind)
        leave(raw)
        async with asyncio.timeout(ABORT_S):
            await stalled.done.wait()
        await c.nothing_booked()
        assert len(c.decoders[0].requests) == 1, "nobody waits for the other answers"
        assert await c.metric("conserve_door_client_gone_total") == 1


@pytest.mark.parametrize("opened", [pytest.param(DOORS[name], id=name) for name in sorted(DOORS)])
async def test_who_leaves_is_noticed_behind_tls_too(opened: OpenDoor, tmp_path: Path) -> None:
    own = make_certificate(tmp_path)
    async with run_cluster(opened, prefillers=0, decoders=1, tls_cert=own.chain, tls_key=own.key) as c:
        c.decoders[0].arm(Fault(stall_head=True))
        parts = urlsplit(c.url)
        trust = ssl.create_default_context(cafile=str(own.chain))
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=trust)
        writer.write(turn("a") + turn("b"))
        stalled = await c.decoders[0].arrived(1)
        writer.close()
        async with asyncio.timeout(ABORT_S):
            await stalled.done.wait()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "bad",
    [
        b"no HTTP\r\n\r\n",
        b"\0" * 10,
        b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: z\r\n\r\n",
        request(CHAT, b"no chunk\r\n", "transfer-encoding: chunked"),
    ],
    ids=["garbage", "NULs", "length", "chunk"],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_a_turn_is_answered_whatever_comes_behind_it(
    cluster: StartCluster, bad: bytes, stream: bool, later: bool
) -> None:
    async with (
        cluster(prefillers=0, decoders=1) as c,
        connect(c.url) as raw,
        asyncio.timeout(WAIT_S),
    ):
        c.decoders[0].arm(Fault(latency_s=0.1))
        turns = turn("a", stream=stream) + turn("b", stream=stream)
        await raw.send(turns if later else turns + bad)
        await c.decoders[0].arrived(1)
        if later:
            await raw.send(bad)
        said = await raw.reader.read(-1)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", said)
        assert statuses == [b"200", b"200", b"400"], "in its place, then the connection ends"
        assert said.count(b"data: [DONE]") == 2 * stream
        assert len(c.decoders[0].requests) == 2
        await c.settled()
        assert await c.metric("conserve_door_client_gone_total") == 0


@pytest.mark.parametrize("cut", [None, 1, 50_000], ids=["at once", "byte by byte", "in pieces"])
async def test_answers_come_in_the_order_of_their_requests(cluster: StartCluster, cut: int | None) -> None:
    texts = ["one", "x" * (LARGE if cut != 1 else 300), "three", "four"]
    async with (
        cluster(prefillers=0, decoders=1, worker={"kv_blocks": 100_000}) as c,
        connect(c.url) as raw,
    ):
        c.decoders[0].arm(Fault(latency_s=0.05))
        whole = b"".join(turn(f"c{place}", text) for place, text in enumerate(texts))

        async def send() -> None:
            for start in range(0, len(whole), cut or len(whole)):
                await raw.send(whole[start : start + (cut or len(whole))])
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        async with asyncio.timeout(WAIT_S):
            for _ in texts:
                status, headers = await raw.head()
                assert status == 200
                await raw.reader.readexactly(int(headers["content-length"]))
            await sending
        sent = [record.json["messages"][0]["content"] for record in c.decoders[0].requests]
        assert sent == texts
        raw.writer.close()
        await c.settled()


@needs_clear_refs
@pytest.mark.parametrize("answered", [False, True], ids=["stalled", "unread"])
@pytest.mark.parametrize("door", sorted(DOORS))
async def test_what_is_sent_without_end_stays_with_its_client(
    tmp_path: Path, door: str, answered: bool
) -> None:
    """Eight clients send turn after turn and read nothing, while the first turn has no answer or every turn has one."""
    options = ("--door", door, "--log-level", "error", "--both")
    async with (
        MockWorker(role="both", remember=False) as mock,
        serving(tmp_path, *options, mock.url) as (url, process),
    ):
        async with connect(url) as raw:
            await raw.send(turn("warm"))
            assert (await raw.head())[0] == 200
        mock.arm(Fault(text="y" * 10_000) if answered else Fault(stall_head=True))
        before = forget_peak(process.pid)

        async def flood(raw: RawClient, name: str) -> int:
            many = turn(name) * 400
            for count in range(1, 1_000):
                raw.writer.write(many)
                try:
                    async with asyncio.timeout(1):
                        await raw.writer.drain()
                except TimeoutError:
                    return count * len(many)
            raise AssertionError(f"{1_000 * len(many) / MIB:.0f} MiB were taken")

        async with contextlib.AsyncExitStack() as stack:
            raws = [
                await stack.enter_async_context(connect(url, receive_buffer_bytes=64 * 1024))
                for _ in range(8)
            ]
            sent = await asyncio.gather(*(flood(raw, f"c{place}") for place, raw in enumerate(raws)))
            more = memory_bytes(process.pid, "VmHWM") - before
            for raw in raws:
                raw.reset()
        assert more <= 64 * MIB, f"{more / MIB:.1f} MiB more for {sum(sent) / MIB:.0f} MiB"
