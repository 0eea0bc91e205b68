"""Which conversation a request belongs to, and that callers never meet."""

from __future__ import annotations

import asyncio

from conserve_workers.mock import Fault
from tests.support.cluster import chat_body

from .conftest import StartCluster

LONG = "a long task description " * 40


async def test_a_client_without_headers_is_recognised_by_its_history(cluster: StartCluster) -> None:
    async with cluster(decoders=2) as c:
        keys, decoders = set(), set()
        history = [LONG]
        for turn in range(1, 5):
            answer = await c.chat(*history, stream=True)
            assert answer.turn == turn
            keys.add(answer.headers["x-conserve-conversation"])
            decoders.add(answer.decoder)
            history += [answer.text, "and then?"]
        assert (len(keys), len(decoders)) == (1, 1)
        assert len(c.prefillers[0].legs("prefill")) == 1


async def test_agents_with_the_same_first_prompt_are_different_conversations(cluster: StartCluster) -> None:
    async with cluster(decoders=2) as c:
        firsts = await asyncio.gather(*(c.chat(LONG) for _ in range(8)))
        keys = {answer.headers["x-conserve-conversation"] for answer in firsts}
        assert len(keys) == 8
        assert len({answer.decoder for answer in firsts}) == 2, "they spread over the decoders"


async def test_without_fingerprint_a_nameless_request_is_always_new(cluster: StartCluster) -> None:
    async with cluster(fingerprint=False) as c:
        first = await c.chat(LONG)
        second = await c.chat(LONG, first.text, "go on")
        assert (first.turn, second.turn) == (1, 1)


async def test_two_tenants_may_use_the_same_id(cluster: StartCluster) -> None:
    async with cluster() as c:
        body = chat_body(LONG)
        ours = await c.post(body, conversation="task-42", key="sk-ours")
        theirs = await c.post(body, conversation="task-42", key="sk-theirs")
        assert (ours.turn, theirs.turn) == (1, 1), "equal ids of two callers are two conversations"
        assert ours.headers["x-conserve-conversation"] != theirs.headers["x-conserve-conversation"]
        assert (await c.get("/v1/conversations/task-42", key="sk-ours")).json["turn"] == 1
        assert (await c.get("/v1/conversations/task-42")).status == 404, "nor is it anybody's without a key"
        assert (await c.delete("/v1/conversations/task-42", key="sk-other")).status == 404
        assert (await c.delete("/v1/conversations/task-42", key="sk-ours")).status == 200
        assert (await c.get("/v1/conversations/task-42", key="sk-ours")).status == 404
        assert (await c.get("/v1/conversations/task-42", key="sk-theirs")).status == 200
        key = theirs.headers["x-conserve-conversation"]
        assert (await c.get(f"/v1/conversations/{key}", key="sk-theirs")).json["turn"] == 1
        assert (await c.get(f"/v1/conversations/{key}", key="sk-ours")).status == 404, "not by its key either"
        assert (await c.delete(f"/v1/conversations/{key}", key="sk-ours")).status == 404


async def test_histories_of_two_tenants_never_meet(cluster: StartCluster) -> None:
    async with cluster() as c:
        first = await c.post(chat_body(LONG), key="sk-ours")
        theirs = await c.post(chat_body(LONG, first.text, "go on"), key="sk-theirs")
        ours = await c.post(chat_body(LONG, first.text, "go on"), key="sk-ours")
        assert (theirs.turn, ours.turn) == (1, 2)


async def test_ids_are_found_in_headers_and_body_in_this_order(cluster: StartCluster) -> None:
    async with cluster() as c:
        by_header = await c.post(chat_body("hi", prompt_cache_key="k"), headers={"x-session-id": "s"})
        assert (await c.get("/v1/conversations/s")).json["turn"] == 1
        both = await c.post(chat_body("hi"), headers={"x-session-id": "other", "x-conversation-id": "s"})
        assert both.turn == 2, "x-conversation-id wins"
        assert both.headers["x-conserve-conversation"] == by_header.headers["x-conserve-conversation"]
        in_body = await c.post(chat_body("hi", prompt_cache_key="k"))
        assert in_body.turn == 1
        assert (await c.get("/v1/conversations/k")).json["turn"] == 1


async def test_the_header_may_have_another_name(cluster: StartCluster) -> None:
    async with cluster(conversation_headers="x-task") as c:
        await c.post(chat_body("hi"), headers={"x-task": "t", "x-conversation-id": "ignored"})
        assert (await c.get("/v1/conversations/t")).status == 200
        assert (await c.get("/v1/conversations/ignored")).status == 404


async def test_an_id_may_hold_slashes_and_letters_of_every_script(cluster: StartCluster) -> None:
    from urllib.parse import quote

    async with cluster() as c:
        for name in ("team/task 42", "ünïcode-任务"):
            await c.post(chat_body("hi", prompt_cache_key=name))
            assert (await c.get(f"/v1/conversations/{quote(name, safe='')}")).status == 200, name
            assert (await c.delete(f"/v1/conversations/{quote(name, safe='')}")).status == 200, name


async def test_requests_of_one_conversation_at_once_share_the_pin(cluster: StartCluster) -> None:
    async with cluster() as c:
        c.prefillers[0].arm(Fault(leg="prefill", latency_s=0.1))
        answers = await asyncio.gather(
            *(c.chat(LONG, conversation="fan-out", stream=True) for _ in range(12))
        )
        assert [answer.status for answer in answers] == [200] * 12
        assert len({answer.decoder for answer in answers}) == 1
        assert len(c.prefillers[0].legs("prefill")) == 1, "only the first places; the others wait for it"
        assert sorted(answer.turn for answer in answers) == list(range(1, 13))
        view = (await c.get("/v1/conversations/fan-out")).json
        assert (view["turn"], view["in_flight"], view["phase"]) == (12, 0, "pinned")


async def test_when_the_placer_fails_a_follower_places(cluster: StartCluster) -> None:
    async with cluster() as c:
        c.prefillers[0].arm(Fault(leg="prefill", stall_head=True, times=1))
        placer = asyncio.create_task(c.chat(LONG, conversation="a"))
        await c.prefillers[0].arrived(1)
        followers = [asyncio.create_task(c.chat(LONG, conversation="a")) for _ in range(3)]
        await c.until_fleet(lambda fleet: fleet["in_flight"] == 4)
        placer.cancel()
        answers = await asyncio.gather(*followers)
        assert [answer.status for answer in answers] == [200] * 3
        assert len({answer.decoder for answer in answers}) == 1
        await c.settled()


async def test_closing_a_conversation_frees_its_blocks_and_the_id(cluster: StartCluster) -> None:
    async with cluster() as c:
        await c.chat(LONG, conversation="a")
        assert (await c.settled())["booked_blocks"] > 0
        closed = await c.delete("/v1/conversations/a")
        assert (closed.status, closed.json["deleted"]) == (200, True)
        await c.nothing_booked()
        assert (await c.delete("/v1/conversations/a")).code == "conversation_not_found"
        assert (await c.chat(LONG, conversation="a")).turn == 1
