"""What happens when workers die or stop answering, seen by a client of real processes."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from conserve.demo.client import ServingError
from tests.system.cluster import SmallCluster, assistant, small_cluster, user

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FIRST = [user("Task: read the table of the fleet and say what is free. " + "Worker p0 has room. " * 20)]


async def assert_books_balance(cluster: SmallCluster, *conversations: str) -> None:
    """Booked blocks are those of the conversations, and the router's own check says the same."""
    books = await cluster.books()
    assert books["in_flight"] == 0
    assert books["check"] == "ok"
    held = [(await cluster.conversation(name))["blocks"] for name in conversations]
    assert books["booked_blocks"] == sum(held), "booked = blocks of the conversations, nothing else"


async def interrupted_turn(
    cluster: SmallCluster, messages: list[dict[str, str]], number: int, *, worker: str
) -> tuple[ServingError, float]:
    """Ask for a long answer, send the worker a signal once text comes; the error and how long it took to come."""
    came = asyncio.Event()
    turn = asyncio.create_task(cluster.chat(messages, max_tokens=4000, on_text=lambda _piece: came.set()))
    await asyncio.wait_for(came.wait(), 30)
    cluster.fleet[worker].signal(number)
    sent = time.monotonic()
    with pytest.raises(ServingError) as caught:
        await turn
    return caught.value, time.monotonic() - sent


async def test_decoder_killed_in_mid_stream(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        first = await cluster.chat(FIRST)
        lost = first.headers["x-conserve-decoder"]
        other = {"d0": "d1", "d1": "d0"}[lost]
        messages = [*FIRST, assistant(first.text), user("And which decoder would you take?")]

        error, _ = await interrupted_turn(cluster, messages, signal.SIGKILL, worker=lost)
        assert error.status is None, "the stream had begun, so the error is an event in it"
        assert error.code in {"worker_unavailable", "worker_protocol_error"}
        assert lost in str(error), "the message names the decoder"
        assert error.text, "what had come before was passed on"

        again = await cluster.chat(messages)
        assert again.headers["x-conserve-decoder"] == other
        assert again.headers["x-conserve-route"] == "relocated"
        assert again.text == await cluster.fresh(other, messages), (
            "nothing of the lost KV was taken for granted"
        )
        assert (await cluster.conversation())["decoder"] == other
        await assert_books_balance(cluster, "task-42")

        messages += [assistant(again.text), user("Why?")]
        third = await cluster.chat(messages)
        assert third.headers["x-conserve-route"] == "pinned", "it stays where it went"
        assert third.text == await cluster.fresh(other, messages)
        await assert_books_balance(cluster, "task-42")


async def test_decoder_killed_between_turns_is_no_error_for_the_client(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        first = await cluster.chat(FIRST)
        lost = first.headers["x-conserve-decoder"]
        await cluster.fleet[lost].kill()
        messages = [*FIRST, assistant(first.text), user("And then?")]
        second = await cluster.chat(messages)
        assert second.headers["x-conserve-decoder"] != lost
        assert second.headers["x-conserve-route"] == "relocated"
        assert second.headers["x-conserve-prefiller"] == "p0", (
            "placed afresh: prefilled and handed over once more"
        )
        assert second.text == await cluster.fresh(second.headers["x-conserve-decoder"], messages)
        await assert_books_balance(cluster, "task-42")


@pytest.mark.parametrize("prefillers", [1, 2])
async def test_prefiller_killed_during_prefill(tmp_path: Path, prefillers: int) -> None:
    messages = [user("Task: " + "count the blocks of each decoder, then those of the fleet. " * 100)]
    async with small_cluster(tmp_path, prefillers=prefillers) as cluster:
        turn = asyncio.create_task(cluster.chat(messages))
        lost = await busy_prefiller(cluster, prefillers)
        cluster.fleet[lost].signal(signal.SIGKILL)
        answer = await turn
        decoder = answer.headers["x-conserve-decoder"]
        if prefillers == 2:
            assert answer.headers["x-conserve-prefiller"] == {"p0": "p1", "p1": "p0"}[lost]
        else:
            assert "x-conserve-prefiller" not in answer.headers, "nobody was left to hand over: no handoff"
        assert answer.text == await cluster.fresh(decoder, messages)
        await assert_books_balance(cluster, "task-42")


async def busy_prefiller(cluster: SmallCluster, count: int) -> str:
    """Wait until a prefiller computes, and say which."""
    async with asyncio.timeout(30):
        while True:
            for number in range(count):
                if (await cluster.metrics(f"p{number}")).total("vllm:num_requests_running") > 0:
                    return f"p{number}"


async def test_decoder_that_stops_answering_in_mid_stream_is_named_within_the_timeout(tmp_path: Path) -> None:
    env = {"CONSERVE_STREAM_IDLE_TIMEOUT_S": "1.5"}
    async with small_cluster(tmp_path, router_env=env) as cluster:
        first = await cluster.chat(FIRST)
        stopped = first.headers["x-conserve-decoder"]
        messages = [*FIRST, assistant(first.text), user("And then?")]
        error, took_s = await interrupted_turn(cluster, messages, signal.SIGSTOP, worker=stopped)
        assert error.code == "worker_timeout"
        assert stopped in str(error)
        assert took_s < 20, "the timeout is 1.5 s, by default it is 60 s"
        cluster.fleet[stopped].signal(signal.SIGCONT)
        await assert_books_balance(cluster, "task-42")


async def test_prefiller_that_stops_answering_is_passed_over(tmp_path: Path) -> None:
    env = {"CONSERVE_PREFILL_TIMEOUT_S": "1.5"}
    async with small_cluster(tmp_path, router_env=env) as cluster:
        cluster.fleet["p0"].signal(signal.SIGSTOP)
        began = time.monotonic()
        answer = await cluster.chat(FIRST)
        assert time.monotonic() - began < 30, "the timeout is 1.5 s, by default it is 120 s"
        assert "x-conserve-prefiller" not in answer.headers, "the decoder computed the prompt itself"
        assert answer.text == await cluster.fresh(answer.headers["x-conserve-decoder"], FIRST)
        await assert_books_balance(cluster, "task-42")


async def test_client_that_leaves_gives_everything_back(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        first = await cluster.chat(FIRST)
        before = (await cluster.conversation())["blocks"]
        came = asyncio.Event()
        messages = [*FIRST, assistant(first.text), user("Tell me everything.")]
        turn = asyncio.create_task(cluster.chat(messages, max_tokens=4000, on_text=lambda _piece: came.set()))
        await asyncio.wait_for(came.wait(), 30)
        turn.cancel()
        decoder = first.headers["x-conserve-decoder"]
        async with asyncio.timeout(10):
            while (await cluster.metrics(decoder)).total("vllm:num_requests_running") > 0:
                pass
        assert (await cluster.conversation())["blocks"] == before, "the growth was returned"
        await assert_books_balance(cluster, "task-42")
