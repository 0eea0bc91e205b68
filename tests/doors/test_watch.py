"""Workers that come, go and come back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import pytest

from .conftest import StartCluster

LONG = "a long task description " * 40


def ids(fleet: dict[str, list[dict[str, int]]]) -> dict[str, int]:
    return {str(row["name"]): row["id"] for row in fleet["workers"]}


async def test_a_door_opens_before_its_workers_and_serves_when_they_come(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, keep_down=1) as c:
        assert (await c.get("/readyz")).status == 503
        await c.decoders[0].start()
        await c.until_fleet(lambda fleet: len(fleet["workers"]) == 1)
        assert (await c.get("/readyz")).status == 200
        assert (await c.chat("hi")).status == 200


async def test_a_request_waits_for_the_first_worker(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1, keep_down=1) as c:
        waiting = asyncio.create_task(c.chat("hi"))
        await c.until_fleet(lambda fleet: fleet["waiting"] == 1)
        await c.decoders[0].start()
        assert (await waiting).status == 200


async def test_a_worker_that_refuses_connections_is_lost_and_comes_back_as_a_new_one(
    cluster: StartCluster,
) -> None:
    async with cluster() as c:
        before = ids(await c.fleet())
        await c.decoders[1].stop()
        fleet = await c.until_fleet(lambda fleet: len(fleet["workers"]) == 2)
        assert [row["name"] for row in fleet["away"]] == ["d1"]
        assert fleet["away"][0]["error"]
        await c.decoders[1].start()
        after = ids(await c.until_fleet(lambda fleet: len(fleet["workers"]) == 3))
        assert after["d1"] > max(before.values()), "an id is never used again"
        assert (after["p0"], after["d0"]) == (before["p0"], before["d0"])
        assert [row["url"] for row in (await c.fleet())["workers"] if row["name"] == "d1"] == [
            c.decoders[1].url
        ]


async def test_an_unhealthy_worker_is_suspected_then_lost(cluster: StartCluster) -> None:
    async with cluster(probe_failures=3, probe_interval_s=0.1) as c:
        c.decoders[0].healthy = False
        await c.until_fleet(lambda fleet: fleet["workers"][1]["health"] == "suspect")
        await c.until_fleet(lambda fleet: [row["name"] for row in fleet["away"]] == ["d0"])
        c.decoders[0].healthy = True
        await c.until_fleet(lambda fleet: len(fleet["workers"]) == 3)


@pytest.mark.parametrize("how", ["stalls", "nothing"])
async def test_a_report_that_stops_coming_grows_old_and_is_used_no_more(
    cluster: StartCluster, how: Literal["stalls", "nothing"]
) -> None:
    def d0(fleet: dict[str, Any]) -> dict[str, Any]:
        rows: list[dict[str, Any]] = [row for row in fleet["workers"] if row["name"] == "d0"]
        return rows[0]

    async with cluster(decoders=1, report_stale_s=0.5, probe_timeout_s=0.1) as c:
        told = d0(await c.until_fleet(lambda fleet: d0(fleet)["kv_usage"] is not None))
        assert not told["report_stale"]
        assert await c.metric("conserve_worker_report_stale", worker="d0") == 0
        c.decoders[0].tells = how
        old = d0(await c.until_fleet(lambda fleet: d0(fleet)["report_stale"]))
        assert old["report_age_s"] > 0.5
        assert (old["kv_usage"], old["reported_running"], old["reported_waiting"]) == (None, None, None)
        assert await c.metric("conserve_worker_report_stale", worker="d0") == 1
        assert await c.metric("conserve_worker_report_age_seconds", worker="d0") > 0.5
        # Its health it still tells: it is not lost, keeps its size and serves.
        probes = c.decoders[0].probes
        await c.until_fleet(lambda _: c.decoders[0].probes >= probes + 5)
        assert (await c.chat(LONG)).status == 200
        row = d0(await c.fleet())
        assert (row["id"], row["health"], row["kv_blocks"]) == (told["id"], "ready", told["kv_blocks"])
        c.decoders[0].tells = "all"
        fresh = d0(await c.until_fleet(lambda fleet: not d0(fleet)["report_stale"]))
        assert fresh["kv_usage"] is not None
        assert fresh["id"] == told["id"]


async def test_one_failed_probe_is_forgiven(cluster: StartCluster) -> None:
    async with cluster(probe_failures=1000, probe_interval_s=0.02) as c:
        before = ids(await c.fleet())
        c.decoders[0].healthy = False
        await c.until_fleet(lambda fleet: fleet["workers"][1]["health"] == "suspect")
        c.decoders[0].healthy = True
        after = await c.until_fleet(lambda fleet: fleet["workers"][1]["health"] == "ready")
        assert ids(after) == before


async def test_a_restart_between_two_probes_is_noticed(cluster: StartCluster) -> None:
    async with cluster(decoders=1, probe_interval_s=0.3) as c:
        first = await c.chat(LONG, conversation="a")
        before = ids(await c.fleet())
        await c.decoders[0].restart()
        after = ids(await c.until_fleet(lambda fleet: ids(fleet) != before and len(fleet["workers"]) == 2))
        assert after["d0"] > before["d0"]
        second = await c.chat(LONG, first.text, "go on", conversation="a")
        assert second.status == 200
        assert len(c.prefillers[0].legs("prefill")) == 2, "the KV is gone: the old pin is stale"
        await c.settled()


async def test_blocks_of_another_size_are_warned_of_once(
    cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(decoders=1, worker={"block_size": 32}) as c:
        await c.chat("hi")
        await c.until_fleet(lambda fleet: fleet["workers"][0]["report_age_s"] is not None)
        said = [record.getMessage() for record in caplog.records if "blocks of 32" in record.getMessage()]
        assert len(said) == 1
        assert "block_size=32" in said[0]


async def test_a_placement_is_logged_with_the_numbers_compared(
    cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="conserve")
    async with cluster(decoders=2) as c:
        await c.chat("hi", conversation="a")
    said = [record.getMessage() for record in caplog.records if "turn 1, first" in record.getMessage()]
    assert len(said) == 1
    assert "blocks free, most of 2" in said[0]


async def test_secrets_and_prompts_are_not_logged(
    cluster: StartCluster, caplog: pytest.LogCaptureFixture
) -> None:
    from conserve_workers.mock import Fault
    from tests.support.cluster import chat_body

    caplog.set_level(logging.DEBUG, logger="conserve")
    async with cluster(decoders=1, worker_key="sk-worker-secret", control_key="sk-control-secret") as c:
        body = chat_body("a private prompt", stream=True)
        for fault in (
            Fault(),
            Fault(leg="decode", reset_at=0, times=1),
            Fault(leg="decode", reset_at=400, times=1),
        ):
            c.decoders[0].arm(fault) if fault != Fault() else None
            await c.post(body, key="sk-client-secret", conversation="a")
        await c.decoders[0].stop()
        await c.post(b"a private body", key="sk-client-secret")
    text = "\n".join(record.getMessage() + str(record.exc_text or "") for record in caplog.records)
    assert text, "decisions are logged"
    for secret in ("secret", "private"):
        assert secret not in text


async def test_a_worker_that_answers_garbage_does_not_keep_the_door_shut(cluster: StartCluster) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"data":' * 50_000
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, cluster(decoders=1, both=[url]) as c:
        assert [row["error"] for row in (await c.fleet())["away"]] == [
            "GET /v1/models did not answer a list of models"
        ]
        assert (await c.chat("hi")).status == 200
