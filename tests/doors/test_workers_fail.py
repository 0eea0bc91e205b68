"""Workers that refuse, hang, lie, answer garbage or die: what the client sees, and that the books balance."""

from __future__ import annotations

import asyncio
import time

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import WAIT_S, chat_body

from .conftest import StartCluster

LONG = "a long task description " * 40


async def test_a_prefiller_that_fails_is_replaced_by_the_next(cluster: StartCluster) -> None:
    async with cluster(prefillers=2) as c:
        for mock in c.prefillers:
            mock.arm(Fault(leg="prefill", status=500, times=1))
        for place in range(4):
            answer = await c.chat(LONG, conversation=f"c{place}")
            assert answer.status == 200, answer.body
        transferred = [leg.transferred_tokens > 0 for mock in c.decoders for leg in mock.legs("decode")]
        assert transferred.count(True) >= 3
        await c.settled()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(leg="prefill", status=500),
        Fault(leg="prefill", body="this is not JSON"),
        Fault(leg="prefill", body="[]"),
        Fault(leg="prefill", no_params=True),
        Fault(leg="prefill", reset_at=0),
        Fault(leg="prefill", close_at=40),
        Fault(leg="prefill", stall_head=True),
        Fault(leg="prefill", stall_at=20),
    ],
    ids=["500", "garbage", "wrong shape", "no params", "reset", "cut", "hangs", "hangs in the body"],
)
async def test_without_a_working_prefiller_the_decoder_prefills_itself(
    cluster: StartCluster, fault: Fault
) -> None:
    async with cluster(prefillers=1, decoders=1, prefill_timeout_s=0.2) as c:
        c.prefillers[0].arm(fault)
        answer = await c.chat(LONG, conversation="a", max_tokens=4)
        assert answer.status == 200, answer.body
        decode = c.decoders[0].legs("decode")[-1]
        assert "kv_transfer_params" not in decode.json
        assert decode.computed_tokens > 0
        assert (await c.chat(LONG, answer.text, "more", conversation="a")).turn == 2
        await c.settled()


async def test_a_decoder_that_refuses_connections_is_lost_and_the_turn_goes_elsewhere(
    cluster: StartCluster,
) -> None:
    async with cluster(probe_interval_s=60.0) as c:
        first = await c.chat(LONG, conversation="a")
        pinned = c.decoder(first.decoder)
        await pinned.stop()
        second = await c.chat(LONG, first.text, "go on", conversation="a", max_tokens=4)
        assert second.status == 200, second.body
        assert second.decoder != first.decoder
        assert len(c.prefillers[0].legs("prefill")) == 2, (
            "the whole history is prefilled anew and handed over"
        )
        assert second.text == (await _alone(LONG, first.text, "go on", max_tokens=4))
        assert first.decoder not in [row["name"] for row in (await c.settled())["workers"]]


async def _alone(*contents: str, **fields: object) -> str:
    """The text that one engine without a router gives."""
    import aiohttp

    from conserve_workers.mock import MockWorker

    async with (
        MockWorker() as mock,
        aiohttp.ClientSession() as http,
        http.post(f"{mock.url}/v1/chat/completions", json=chat_body(*contents, **fields)) as response,
    ):
        return str((await response.json())["choices"][0]["message"]["content"])


async def test_without_any_decoder_a_turn_is_refused_after_its_wait(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, keep_down=1, queue_timeout_s=0.1) as c:
        answer = await c.chat("hi")
        assert (answer.status, answer.code) == (503, "no_workers"), answer.body
        assert int(answer.headers["retry-after"]) >= 1
        await c.nothing_booked()
        assert (await c.get("/readyz")).status == 503
        assert [row["url"] for row in (await c.fleet())["away"]] == [c.decoders[0].url]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault(leg="decode", stall_head=True), 504, "worker_timeout"),
        (Fault(leg="decode", reset_at=0), 503, "worker_unavailable"),
        (Fault(leg="decode", close_at=0), 503, "worker_unavailable"),
    ],
    ids=["hangs", "resets", "closes"],
)
async def test_decoders_that_fail_before_the_first_byte(
    cluster: StartCluster, fault: Fault, status: int, code: str, stream: bool
) -> None:
    async with cluster(
        prefillers=0, decoders=2, first_byte_timeout_s=0.2, answer_timeout_s=0.2, retries=1
    ) as c:
        for mock in c.decoders:
            mock.arm(fault)
        answer = await c.post(chat_body("hi", stream=stream), conversation="a")
        assert (answer.status, answer.code) == (status, code), answer.body
        assert sum(len(mock.requests) for mock in c.decoders) <= 5, "no storm of attempts"
        await c.nothing_booked()


async def test_a_decoder_that_answers_garbage_is_a_protocol_error(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(body="<html>oops</html>", times=1))
        answer = await c.chat("hi", conversation="a", stream=True)
        assert (answer.status, answer.code) == (502, "worker_protocol_error"), answer.body
        await c.nothing_booked()
        assert (await c.chat("hi", conversation="a")).status == 200, "the next turn is served"


async def test_an_answer_that_is_too_large_to_hold_is_a_protocol_error(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, max_answer_bytes=10_000) as c:
        c.decoders[0].arm(Fault(tokens=20, token_bytes=1_000))
        answer = await c.chat("hi")
        assert (answer.status, answer.code) == (502, "worker_protocol_error"), answer.body
        await c.nothing_booked()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_decoders_answer_reaches_the_client_with_retry_after(
    cluster: StartCluster, status: int, stream: bool
) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(
            Fault(status=status, headers={"retry-after": "7"}, body='{"error":{"message":"full"}}')
        )
        answer = await c.post(chat_body("hi", stream=stream))
        assert (answer.status, answer.headers["retry-after"]) == (status, "7")
        assert answer.json == {"error": {"message": "full"}}
        assert len(c.decoders[0].requests) <= 3, "no storm of attempts"
        await c.nothing_booked()
        assert (await c.fleet())["workers"][0]["health"] == "ready", "being busy is no fault"


async def test_a_clients_mistake_is_not_the_workers(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(status=422, times=20))
        for _ in range(20):
            assert (await c.chat("hi")).status == 422
        assert len(c.decoders[0].requests) == 20, "a 4xx is never tried again"
        assert (await c.chat("hi")).status == 200
        assert (await c.fleet())["workers"][0]["health"] == "ready"


async def test_a_failed_kv_load_is_prefilled_on_the_decoder_once(cluster: StartCluster) -> None:
    async with cluster(prefillers=1, decoders=1) as c:
        c.decoders[0].arm(Fault(leg="decode", status=500, times=1))
        answer = await c.chat(LONG, conversation="a", stream=True)
        assert answer.status == 200, answer.body
        first, second = c.decoders[0].legs("decode")
        assert "kv_transfer_params" in first.json
        assert "kv_transfer_params" not in second.json
        await c.settled()


@pytest.mark.parametrize("how", ["refuses", "fails", "client leaves"])
async def test_a_prefill_that_nobody_pulls_is_counted_as_an_orphan(cluster: StartCluster, how: str) -> None:
    async with cluster(prefillers=1, decoders=1, probe_interval_s=60.0, queue_timeout_s=0.1) as c:
        prefiller, decoder = c.prefillers[0], c.decoders[0]
        prefiller.arm(Fault(leg="prefill", latency_s=0.1, times=1))
        if how == "fails":
            decoder.arm(Fault(leg="decode", status=500, times=1))
        if how == "client leaves":
            decoder.arm(Fault(leg="decode", stall_head=True, times=1))
        turn = asyncio.create_task(c.chat(LONG, conversation="a"))
        await prefiller.arrived(1)
        if how == "refuses":
            await decoder.stop()
        if how == "client leaves":
            await decoder.arrived(1)
            turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        await c.settled()
        assert await c.metric("conserve_orphaned_prefills_total") == 1


async def test_a_prefill_that_was_pulled_is_no_orphan(cluster: StartCluster) -> None:
    async with cluster(prefillers=1, decoders=1) as c:
        assert (await c.chat(LONG, conversation="a", stream=True)).status == 200
        assert await c.metric("conserve_orphaned_prefills_total") == 0


async def test_params_older_than_the_lease_are_never_sent(cluster: StartCluster) -> None:
    async with cluster(prefillers=1, decoders=1, lease_s=0.05, probe_interval_s=60.0) as c:
        c.prefillers[0].arm(Fault(leg="prefill", latency_s=0.1))
        answer = await c.chat(LONG, conversation="a")
        assert answer.status == 200, answer.body
        assert not any(leg.stale for leg in c.decoders[0].legs("decode"))
        await c.settled()


@pytest.mark.parametrize(
    "fault",
    [Fault(reset_at=900), Fault(close_at=900), Fault(reset_at=903), Fault(no_done=True), Fault(stall_at=900)],
    ids=["reset", "closed", "reset in an event", "ended without [DONE]", "stalled"],
)
async def test_a_stream_that_breaks_ends_with_an_error_event(cluster: StartCluster, fault: Fault) -> None:
    async with cluster(stream_idle_timeout_s=0.2, probe_interval_s=60.0) as c:
        first = await c.chat(LONG, conversation="a")
        c.decoder(first.decoder).arm(fault)
        broken = await c.chat(LONG, first.text, "go on", conversation="a", stream=True, max_tokens=20)
        assert broken.status == 200
        blocks = broken.body.split(b"\n\n")
        assert b'"error"' in blocks[-2], "the last event is the error"
        assert blocks[-1] == b""
        import json

        error = json.loads(blocks[-2].removeprefix(b"data: "))["error"]
        assert error["code"] in ("worker_unavailable", "worker_timeout", "worker_protocol_error")
        assert b"data: [DONE]" not in broken.body
        c.decoder(first.decoder).faults.clear()
        await c.settled()
        after = await c.chat(LONG, first.text, "go on", conversation="a", max_tokens=4)
        assert after.status == 200
        assert after.text == await _alone(LONG, first.text, "go on", max_tokens=4)


async def test_bytes_that_are_no_chunk_end_a_stream_at_once(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(garbage_at=900, interval_s=0.01, times=1))
        began = time.monotonic()
        broken = await c.chat("hi", stream=True, max_tokens=20)
        assert time.monotonic() - began < WAIT_S, "long before the idle timeout of a minute"
        assert b'"error"' in broken.body.split(b"\n\n")[-2]
        async with asyncio.timeout(WAIT_S):
            await c.decoders[0].requests[0].done.wait()
        await c.settled()
        assert (await c.chat("hi")).status == 200


async def test_a_decoder_killed_in_mid_stream_gives_an_error_event_and_the_next_turn_relocates(
    cluster: StartCluster,
) -> None:
    async with cluster(probe_interval_s=0.05) as c:
        first = await c.chat(LONG, conversation="a")
        pinned = c.decoder(first.decoder)
        pinned.arm(Fault(interval_s=0.05, tokens=1000, times=1))
        task = asyncio.create_task(c.chat(LONG, first.text, "go on", conversation="a", stream=True))
        await pinned.arrived(2)
        await asyncio.sleep(0.12)
        await pinned.stop()
        broken = await task
        assert broken.body.rstrip().split(b"\n\n")[-1].startswith(b'data: {"error"')
        second = await c.chat(LONG, first.text, "go on", conversation="a", max_tokens=4)
        assert (second.status, second.decoder != first.decoder) == (200, True), second.body
        assert second.text == await _alone(LONG, first.text, "go on", max_tokens=4)
        fleet = await c.settled()
        assert first.decoder not in [row["name"] for row in fleet["workers"]]


async def test_one_stuck_decoder_does_not_hold_up_the_others(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=2) as c:
        first = await c.chat("hi", conversation="stuck")
        c.decoder(first.decoder).arm(Fault(stall_head=True, times=1))
        stuck = asyncio.create_task(c.chat("hi", first.text, "x", conversation="stuck"))
        await c.decoder(first.decoder).arrived(2)
        began = time.monotonic()
        answers = await asyncio.gather(*(c.chat("hi", conversation=f"c{place}") for place in range(20)))
        assert [answer.status for answer in answers] == [200] * 20
        assert time.monotonic() - began < 5.0
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        await c.settled()
