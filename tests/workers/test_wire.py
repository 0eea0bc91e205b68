from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from conserve_workers.tiny.errors import HandoffError, RequestError
from conserve_workers.tiny.handoff import wire
from conserve_workers.tiny.handoff.leases import LeaseTable
from conserve_workers.tiny.handoff.params import describe, parse

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(5)
        right.settimeout(5)
        yield left, right


def test_frame_arrives_as_sent(pair: Pair) -> None:
    wire.send(pair[0], {"a": 1}, memoryview(b"payload"))
    room = bytearray(10)
    assert wire.receive(pair[1], into=memoryview(room)) == ({"a": 1}, 7)
    assert room == b"payload\0\0\0"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (struct.pack("!4sIQ", b"HTTP", 1, 0) + b"{", "does not speak"),
        (struct.pack("!4sIQ", b"CKV1", 1 << 30, 0), "does not speak"),
        (struct.pack("!4sIQ", b"CKV1", 2, 1 << 40) + b"{}", "at most 0 were expected"),
        (struct.pack("!4sIQ", b"CKV1", 2, 0) + b"{x", "not JSON"),
        (struct.pack("!4sIQ", b"CKV1", 30_000, 0) + b"[" * 30_000, "not JSON"),
        (struct.pack("!4sIQ", b"CKV1", 2, 0) + b"[]", "not an object"),
        (b"CKV1", "closed"),
        (b"", "closed"),
    ],
)
def test_strange_bytes_are_refused(pair: Pair, raw: bytes, message: str) -> None:
    pair[0].sendall(raw)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(HandoffError, match=message):
        wire.receive(pair[1])


def test_lease_is_given_back_once_when_fetched() -> None:
    table = LeaseTable(lease_s=10)
    table.grant("r", [1, 2], tokens=20, now_s=0)
    assert table.open("r", now_s=1) == ([1, 2], 20)
    assert table.close("r", fetched=True) == [1, 2]
    assert table.open("r", now_s=1) is None
    assert table.expire(now_s=99) == []


def test_broken_off_transfer_can_be_tried_again() -> None:
    table = LeaseTable(lease_s=10)
    table.grant("r", [1], tokens=1, now_s=0)
    table.open("r", now_s=1)
    assert table.close("r", fetched=False) == []
    assert table.open("r", now_s=2) == ([1], 1)


def test_lease_does_not_end_under_a_reader_but_is_closed_to_new_ones() -> None:
    table = LeaseTable(lease_s=10)
    table.grant("r", [1], tokens=1, now_s=0)
    table.open("r", now_s=9.9)
    assert table.expire(now_s=10) == []
    assert table.open("r", now_s=10) is None
    assert table.close("r", fetched=False) == []
    assert table.expire(now_s=10) == [[1]]


def test_two_readers_give_back_once() -> None:
    table = LeaseTable(lease_s=10)
    table.grant("r", [1], tokens=1, now_s=0)
    table.open("r", now_s=1)
    table.open("r", now_s=1)
    assert table.close("r", fetched=True) == []
    assert table.close("r", fetched=True) == [1]


def test_deadline_is_that_of_the_next_lease_to_end() -> None:
    table = LeaseTable(lease_s=10)
    assert table.next_deadline_s() is None
    table.grant("a", [1], tokens=1, now_s=0)
    table.grant("b", [2], tokens=1, now_s=5)
    assert table.next_deadline_s() == 10
    assert table.expire(now_s=10) == [[1]]
    assert table.next_deadline_s() == 15


PARAMS = describe(engine_id="e", request_id="r", host="h", port=9, blocks=[4, 5], tokens=20)


def test_what_a_prefiller_says_a_decoder_understands() -> None:
    keep, remote = parse(PARAMS)
    assert keep is False
    assert remote is not None
    assert (remote.engine_id, remote.request_id, remote.host, remote.port) == ("e", "r", "h", 9)
    assert (remote.tokens, remote.blocks) == (20, 2)


def test_asking_for_a_handoff_and_for_none() -> None:
    assert parse({"do_remote_decode": True, "do_remote_prefill": False}) == (True, None)
    assert parse(None) == (False, None)
    assert parse({}) == (False, None)


@pytest.mark.parametrize(
    "change",
    [
        {"do_remote_decode": True},
        {"remote_engine_id": None},
        {"remote_request_id": ""},
        {"remote_host": 7},
        {"remote_port": 0},
        {"remote_port": 70_000},
        {"remote_port": True},
        {"remote_num_tokens": -1},
        {"remote_block_ids": []},
        {"tp_size": 2},
    ],
)
def test_damaged_params_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="kv_transfer_params"):
        parse({**PARAMS, **change})
