"""The fast mock worker over its socket: what it answers, and each thing that it does wrong on demand."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import CHAT, chat_body
from tests.support.fast_mock import FastMock
from tests.support.raw import connect, request

PREFILL: dict[str, Any] = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


async def post(
    http: aiohttp.ClientSession, mock: FastMock, *, words: str = "", **fields: Any
) -> tuple[aiohttp.ClientResponse, bytes]:
    body = json.dumps(
        chat_body(**({"user": f"mock {words}"} if words else {}), **fields), separators=(",", ":")
    )
    async with http.post(mock.url + CHAT, data=body) as response:
        return response, await response.read()


def events(stream: bytes) -> list[Any]:
    data = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
    assert data.pop() == b"[DONE]"
    return [json.loads(event) for event in data]


async def test_a_stream_has_as_many_events_as_asked_and_begins_with_what_is_to_be_echoed(
    http: aiohttp.ClientSession,
) -> None:
    async with FastMock("--role", "decoder", "--interval_ms", "1") as mock:
        options = {"include_usage": True}
        _, stream = await post(
            http, mock, words="chunks=3 echo=task-7.1", stream=True, stream_options=options
        )
        *tokens, usage = events(stream)
        texts = [event["choices"][0]["delta"]["content"] for event in tokens]
        assert texts == ["task-7.1", " tok", " tok"]
        assert usage["usage"]["completion_tokens"] == 3
        _, whole = await post(http, mock, words="chunks=3 echo=task-7.1")
        assert json.loads(whole)["choices"][0]["message"]["content"] == "".join(texts), "the same text"


async def test_a_handoff_is_pulled_once_by_the_right_worker_and_in_time(http: aiohttp.ClientSession) -> None:
    async with FastMock("--role", "prefiller") as p, FastMock("--role", "decoder", "--lease_ms", "50") as d:

        async def prefilled() -> Any:
            answer, body = await post(http, p, **PREFILL)
            assert answer.status == 200
            return json.loads(body)["kv_transfer_params"]

        params = await prefilled()
        answer, body = await post(http, d, words="chunks=1 echo=a", kv_transfer_params=params)
        assert (answer.status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "a")
        for wrong in (params, params | {"remote_engine_id": "x"}, {"do_remote_prefill": True}):
            assert (await post(http, d, kv_transfer_params=wrong))[0].status == 500, wrong
        late = await prefilled()
        await asyncio.sleep(0.06)  # what is tested is the age
        _, body = await post(http, d, words="chunks=1 echo=a", kv_transfer_params=late)
        assert json.loads(body)["choices"][0]["message"]["content"] == "stale"
        assert (await post(http, p))[0].status == 500, "a prefiller does not decode"
        answer, body = await post(http, d, words="chunks=2 echo=a", **PREFILL)
        kept = json.loads(body)
        assert (answer.status, kept["choices"][0]["message"]["content"]) == (200, "a tok")
        assert kept["kv_transfer_params"]["remote_port"] == d.port, "a turn that is kept is told where"
        counts = await d.counts()
        assert (counts["refused"], counts["stale"]) == (3, 1)
        assert counts["pulled_tokens"] > 0


async def test_parameters_behind_a_long_history_are_found(http: aiohttp.ClientSession) -> None:
    # It keeps 8 KB of a body's start and 1 KB of its end; what is added lies at one of both.
    async with FastMock("--role", "both") as mock:
        for size in (7_000, 8_000, 8_192, 8_500, 9_500, 100_000):
            body = {"messages": [{"role": "user", "content": "x" * size}], "stream": False}
            async with http.post(mock.url + CHAT, json=body | PREFILL) as response:
                params = (await response.json())["kv_transfer_params"]
            assert params is not None, size
            data = json.dumps(body | {"kv_transfer_params": params}, separators=(",", ":"))
            async with http.post(mock.url + CHAT, data=data) as response:
                assert response.status == 200, size
        assert (await mock.counts())["pulled_tokens"] > 100_000 // 4


@pytest.mark.parametrize(("status", "after"), [(429, "7"), (503, None)])
async def test_a_status_with_retry_after(http: aiohttp.ClientSession, status: int, after: str | None) -> None:
    async with FastMock() as mock:
        words = f"status={status}" + (f" retry_after={after}" if after else "")
        answer, body = await post(http, mock, words=words)
        assert (answer.status, answer.headers.get("retry-after")) == (status, after)
        assert json.loads(body)["error"]["code"] == status


async def test_gzip(http: aiohttp.ClientSession) -> None:
    async with FastMock() as mock:
        answer, body = await post(http, mock, words="gzip")
        assert answer.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(body))["object"] == "chat.completion"


async def test_latency_and_intervals_pass_before_the_answer(http: aiohttp.ClientSession) -> None:
    async with FastMock("--interval_ms", "20") as mock:
        began = time.monotonic()
        await post(http, mock, words="latency_ms=80 chunks=5", stream=True)
        assert time.monotonic() - began >= 0.08 + 4 * 0.02


@pytest.mark.parametrize("fault", ["reset_at", "close_at", "stall_at"])
@pytest.mark.parametrize("at", [0, 1, 200, 700])
async def test_an_answer_is_cut_at_the_byte_that_was_asked_for(fault: str, at: int) -> None:
    async with FastMock("--interval_ms", "1") as mock, connect(mock.url) as raw:
        body = json.dumps(chat_body(user=f"mock {fault}={at}", stream=True), separators=(",", ":")).encode()
        await raw.send(request(CHAT, body))
        got = b""
        try:
            async with asyncio.timeout(0.5 if fault == "stall_at" else 10):
                while piece := await raw.reader.read(4096):
                    got += piece
                ended = "close_at"
        except ConnectionResetError:
            ended = "reset_at"
        except TimeoutError:
            ended = "stall_at"
        assert ended == fault
        assert len(got) == at or (fault == "reset_at" and len(got) <= at), (
            "a reset may overtake what was sent"
        )


async def test_garbage_is_no_http(http: aiohttp.ClientSession) -> None:
    async with FastMock() as mock:
        with pytest.raises(aiohttp.ClientError):
            await post(http, mock, words="garbage")


async def test_what_is_told_holds_until_something_else_is(http: aiohttp.ClientSession) -> None:
    async with FastMock() as mock:
        await mock.tell("status=503")
        assert [(await post(http, mock))[0].status for _ in range(2)] == [503, 503]
        await mock.tell("")
        assert (await post(http, mock))[0].status == 200
        assert (await post(http, mock, words="no-such-word"))[0].status == 400


async def test_its_metrics_are_those_of_vllm_and_a_restart_shows(http: aiohttp.ClientSession) -> None:
    async with FastMock("--blocks", "77", "--role", "both") as mock:

        async def metrics() -> str:
            async with http.get(f"{mock.url}/metrics") as response:
                return await response.text()

        first = await metrics()
        assert 'num_gpu_blocks="77"' in first
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f"\nvllm:{name}{{" in first
        await post(http, mock)
        assert 'source="local_compute"} 0' not in await metrics()

        def started(text: str) -> str:
            return next(line for line in text.splitlines() if line.startswith("process_start_time_seconds "))

        port = mock.port
        await mock.kill()
        await mock.start()
        assert mock.port == port
        assert started(await metrics()) != started(first)
