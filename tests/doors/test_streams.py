"""Long streams, slow readers, many at once: nothing is lost and nothing piles up."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import CHAT, WAIT_S, chat_body
from tests.support.raw import connect, request

from .conftest import StartCluster


async def test_a_slow_reader_slows_its_own_upstream_and_nobody_else(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c, connect(c.url, receive_buffer_bytes=65_536) as raw:
        c.decoders[0].arm(Fault(tokens=16_384, token_bytes=16_384, times=1))
        await raw.send(request(CHAT, json.dumps(chat_body("hi", stream=True)).encode()))
        slow = await c.decoders[0].arrived(1)
        assert (await raw.head())[0] == 200
        previous = -1
        async with asyncio.timeout(WAIT_S):
            while slow.sent_bytes != previous:
                previous = slow.sent_bytes
                await asyncio.sleep(0.2)
        assert slow.sent_bytes < 40_000_000, "of 268 MB only what fits the sockets' own buffers was sent"
        assert not slow.done.is_set(), "the worker waits for the reader"
        quick = await asyncio.gather(*(c.chat("hi", conversation=f"c{place}") for place in range(10)))
        assert [answer.status for answer in quick] == [200] * 10
        raw.reset()
        async with asyncio.timeout(0.5):
            await slow.done.wait()
        await c.settled()


async def test_a_client_that_takes_nothing_is_let_go(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, client_stall_timeout_s=0.2) as c:
        async with connect(c.url, receive_buffer_bytes=65_536) as raw:
            c.decoders[0].arm(Fault(tokens=5_000, token_bytes=16_384, times=1))
            await raw.send(request(CHAT, json.dumps(chat_body("hi", stream=True)).encode()))
            stalled = await c.decoders[0].arrived(1)
            async with asyncio.timeout(5.0):
                await stalled.done.wait()
            assert stalled.aborted
            await c.settled()


async def test_a_large_stream_arrives_whole(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(tokens=1_000, token_bytes=20_000, times=1))
        answer = await c.chat("hi", stream=True)
        assert len(answer.text) == 20_000_000
        assert answer.events[-1] == "[DONE]"


async def test_many_streams_at_once_stay_apart(cluster: StartCluster) -> None:
    async with cluster() as c:
        for mock in c.decoders:
            mock.arm(Fault(interval_s=0.001, split=23))
        prompts = [f"prompt number {place} " * 10 for place in range(60)]
        answers = await asyncio.gather(*(c.chat(prompt, stream=True, max_tokens=12) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            stem = hashlib.sha256(f"<|user|>{prompt}".encode()).hexdigest()
            assert answer.text == "".join(f"{stem[place % 64]}{place:02d} " for place in range(12))
        await c.settled()


LETTERS = 'é漢字🙂\u2028\u00a0\ufeff\u0000\\"\n'
"""Of one to four bytes; some that readers of lines or of JSON trip over."""


@pytest.mark.parametrize("split", [1, 2, 3, 5])
@pytest.mark.parametrize("asked", [False, True])
async def test_letters_of_several_bytes_cut_anywhere_arrive_as_they_were(
    cluster: StartCluster, asked: bool, split: int
) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(split=split, text=LETTERS))
        fields: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
        answer = await c.chat("hi " + LETTERS, stream=True, max_tokens=3, **fields)
        assert answer.text == LETTERS * 3
        assert answer.events[-1] == "[DONE]"
        assert "�" not in answer.body.decode(), "no letter was cut in two"
        assert c.decoders[0].requests[0].json["messages"][0]["content"] == "hi " + LETTERS
        usage = [event["usage"] for event in answer.events if isinstance(event, dict) and event.get("usage")]
        assert [each["completion_tokens"] for each in usage] == ([3] if asked else [])
        assert await c.metric("conserve_output_tokens_total") == 3, "the hidden usage was read"


async def test_a_stream_cut_at_each_of_its_bytes_arrives_whole(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, max_conversations=5000) as c:
        c.decoders[0].arm(Fault(text=LETTERS, times=1))
        body = chat_body("hi", stream=True, max_tokens=2)
        await c.post(body)
        whole = c.decoders[0].requests[0].sent_bytes
        answers = []
        for start in range(1, whole, 100):
            cuts = range(start, min(start + 100, whole))
            for cut in cuts:
                c.decoders[0].arm(Fault(text=LETTERS, pause_at=cut, times=1))
            answers += await asyncio.gather(*(c.post(body) for _ in cuts))
        assert {answer.text for answer in answers} == {LETTERS * 2}
        assert not any(event.get("usage") for each in answers for event in each.events[:-1])
        assert {answer.events[-1] for answer in answers} == {"[DONE]"}


async def test_kept_connections_that_a_worker_closed_do_not_fail_the_next_turn(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, probe_interval_s=60.0) as c:
        for _ in range(5):
            assert (await c.chat("hi", conversation="a")).status == 200
            for connection in list(c.decoders[0]._connections):
                connection.cut(reset=False)
