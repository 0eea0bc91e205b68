"""What only the native door has: its control socket, its log thread, its limits."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from conserve import ConfigError, Decoder, ManualClock, Router
from conserve._core import Dispatcher, NativeDoor
from conserve.proxy.native import NativeServer
from conserve.proxy.server import _server
from conserve.settings import Settings
from conserve_workers.mock import Fault
from tests.support.cluster import chat_body, run_cluster
from tests.support.raw import connect, request

from .conftest import DoorHere, open_native


def mode(path: Path) -> int:
    return path.stat().st_mode


async def test_nobody_else_reaches_the_control_socket_and_it_goes_with_the_door() -> None:
    async with run_cluster(open_native, prefillers=0, decoders=1) as c:
        assert isinstance(c.door, DoorHere)
        assert isinstance(c.door.server, NativeServer)
        control = Path(c.door.server.front.control_path)
        assert stat.S_ISSOCK(mode(control))
        assert stat.S_IMODE(mode(control.parent)) == 0o700
        await c.door.stop()
        with pytest.raises(FileNotFoundError):
            mode(control.parent)


async def test_decisions_are_logged_as_the_other_door_logs_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with run_cluster(open_native, decoders=1) as c:
        first = await c.chat("hi", conversation="a", stream=True)
        assert (await c.chat("hi", first.text, "x", conversation="a")).turn == 2
        await c.post(b"[]")
        c.decoders[0].arm(Fault(leg="decode", reset_at=0, times=2))
        await c.chat("hi", first.text, "y", conversation="a")
        await c.door.stop()
    decisions = [each.getMessage() for each in caplog.records if each.name == "conserve.proxy.decisions"]
    assert [line for line in decisions if "turn 1, first: decoder d0, handed over from p0" in line]
    assert not [line for line in decisions if "turn 2" in line], "a pinned turn says nothing"
    assert [line for line in decisions if "answered 400 invalid_type" in line]
    driver = [each.getMessage() for each in caplog.records if each.name == "conserve.proxy.driver"]
    assert [line for line in driver if "decode failed at d0: reset" in line]


async def test_a_head_above_the_limit_is_refused(tmp_path: Path) -> None:
    async with run_cluster(open_native, prefillers=0, decoders=1) as c, connect(c.url) as raw:
        await raw.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * 100_000 + b"\r\n\r\n")
        assert (await raw.head())[0] == 431


async def test_a_long_body_of_small_members_holds_nobody_up() -> None:
    # Without messages: it is read to its end, and no worker is asked.
    long = b'{"model":"mock",' + b'"a":1,' * 5_500_000 + b'"b":2}'
    short = request("/v1/chat/completions", b"[]")
    async with run_cluster(open_native, prefillers=0, decoders=1, door_threads=1) as c:
        async with connect(c.url) as one, connect(c.url) as other:
            await one.send(request("/v1/chat/completions", long))
            sent = time.monotonic()
            reading = asyncio.create_task(one.head())
            answered = [sent]
            while not reading.done():
                await other.send(short)
                status, headers = await other.head()
                await other.reader.readexactly(int(headers["content-length"]))
                assert status == 400
                answered.append(time.monotonic())
            assert (await reading)[0] == 400
    waits = [after - before for before, after in itertools.pairwise(answered)]
    assert max(waits) < 0.5 * (answered[-1] - sent), "the only thread's other work went on meanwhile"


async def test_requests_on_one_connection_are_answered_in_their_order() -> None:
    async with run_cluster(open_native, prefillers=0, decoders=1) as c, connect(c.url) as raw:
        await raw.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n")
        for status in (200, 404):
            got, headers = await raw.head()
            await raw.reader.readexactly(int(headers["content-length"]))
            assert got == status


async def test_a_turn_that_goes_round_by_the_app_is_served_and_counted_all_the_same() -> None:
    async with run_cluster(open_native, prefillers=0, decoders=1) as c:
        answer = await c.post(chat_body("hi"), path="/v1/chat%2Fcompletions")
        assert answer.status == 200
        assert await c.metric("conserve_door_requests_total", status="200") == 1


def test_it_is_the_default() -> None:
    assert Settings().door == "native"


def test_a_build_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "conserve.proxy.native")
    monkeypatch.delattr("conserve._core.NativeDoor")
    with pytest.raises(ConfigError, match=r"no native door.*--door fastapi"):
        _server(Settings(decoders=["http://d0:1"]), lambda _: None)


async def test_connections_above_the_bound_wait_until_one_is_free() -> None:
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    async with run_cluster(open_native, prefillers=0, decoders=1, max_connections=2) as c:
        async with connect(c.url) as first, connect(c.url) as second:
            for raw in (first, second):
                await raw.send(get)
                assert (await raw.head())[0] == 200
            async with connect(c.url) as third:
                await third.send(get)
                waiting = asyncio.create_task(third.head())
                done, _ = await asyncio.wait({waiting}, timeout=0.3)
                assert not done
                first.reset()
                async with asyncio.timeout(10):
                    assert (await waiting)[0] == 200


def test_an_address_that_is_taken_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            NativeServer(Settings(port=port, door="native", decoders=["http://d0:1"]))


def test_a_clock_that_a_test_moves_is_refused() -> None:
    router = Router(decoders=[Decoder("http://d0:1", kv_blocks=100)], clock=ManualClock())
    with pytest.raises(ConfigError, match="clock"):
        NativeDoor(Dispatcher(router), host="127.0.0.1", port=0, control="/nowhere")


async def test_a_door_that_was_never_started_can_be_stopped() -> None:
    router = Router(decoders=[Decoder("http://d0:1", kv_blocks=100)])
    door = NativeDoor(Dispatcher(router), host="127.0.0.1", port=0, control="/nowhere")
    assert door.drain(0.1) == 0
    door.stop()
    door.stop()
    assert await asyncio.to_thread(door.lines, 1.0) is None
