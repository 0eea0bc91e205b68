"""Memory is used again: no byte of one tenant reaches another's worker request, answer or the log."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import CHAT, Cluster
from tests.support.raw import connect, request

from .conftest import StartCluster

TENANTS = ("alice", "bob")
# Long before short; in one piece, in several, and longer than what is kept for the next.
SIZES = (300_000, 2_000, 700_000, 70_000, 130_000, 40_000, 500)


def body(tenant: str, number: int, size: int) -> bytes:
    mark = f"<{tenant}-{number}>"
    content = mark * (size // len(mark))
    return json.dumps({"model": "mock", "messages": [{"role": "user", "content": content}]}).encode()


async def aborted(c: Cluster, tenant: str, sent: bytes, *headers: str) -> None:
    """Sends a half, and leaves."""
    async with connect(c.url) as raw:
        whole = request(CHAT, sent, f"authorization: Bearer {tenant}", *headers)
        await raw.send(whole[: len(whole) // 2])
        raw.reset()


async def left(c: Cluster, tenant: str, sent: bytes) -> None:
    """Asks, and leaves while the answer comes."""
    secret = json.dumps({"secret": f"<{tenant}-left>" * 100_000})
    c.decoders[0].arm(Fault(leg="decode", times=1, body=secret, stall_at=500_000))
    before = len(c.decoders[0].requests)
    async with connect(c.url) as raw:
        await raw.send(request(CHAT, sent, f"authorization: Bearer {tenant}"))
        async with asyncio.timeout(10):
            while len(c.decoders[0].requests) == before:  # noqa: ASYNC110 - the mock announces nothing
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)  # Real time: for the first part of the answer.
        raw.reset()


async def test_short_bodies_after_long_ones_hold_nothing_of_them(
    cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    worker = {"kv_blocks": 1_000_000, "max_model_len": 1_000_000}
    sent: list[bytes] = []
    async with cluster(prefillers=0, decoders=1, worker=worker) as c:
        for number, size in enumerate(SIZES * 2):
            mine, other = TENANTS if number % 2 else TENANTS[::-1]
            long = body(mine, number, size)
            zipped = gzip.compress(long)
            c.decoders[0].arm(
                Fault(leg="decode", times=1, body=json.dumps({"secret": f"<{mine}-answer>" * 20_000}))
            )
            answer = await c.post(long, key=mine, conversation="a")
            assert (answer.status, f"<{mine}-answer>" in answer.body.decode()) == (200, True)
            await aborted(c, mine, body(mine, number, 400_000))
            unheard = body(mine, 1000 + number, 80_000)
            await left(c, mine, unheard)
            refused = await c.post(zipped, key=mine, headers={"content-encoding": "gzip"})
            assert (refused.status, refused.code) == (415, "unsupported_encoding")
            # At once, so that what was given back is taken by several.
            rest = [
                body(other, 100 * number + place, each) for place, each in enumerate((600, 90_000, 40_000))
            ]
            answers = await asyncio.gather(*(c.post(each, key=other) for each in rest))
            for each in answers:
                assert each.status == 200
                assert mine.encode() not in each.body
            broken = await c.post(rest[0][:-20], key=other)
            assert (broken.status, broken.code) == (400, "invalid_json")
            assert mine.encode() not in broken.body
            sent += [long, unheard, *rest]
        await c.settled()
        asked = [leg.body for leg in c.decoders[0].legs("decode")]
    assert sorted(asked) == sorted(sent), "each worker request is what one client sent, whole"
    log = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("conserve"))
    assert "<alice-" not in log
    assert "<bob-" not in log
