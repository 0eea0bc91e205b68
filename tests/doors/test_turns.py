"""What a turn looks like to its client and to the workers when nothing goes wrong."""

from __future__ import annotations

import json

import pytest

from conserve_workers.mock import Fault
from tests.support.cluster import CHAT, COMPLETIONS, Answer, chat_body

from .conftest import StartCluster

LONG = "please read this file: " + "line of code; " * 60


async def test_first_turn_is_prefilled_once_and_later_turns_stay_on_its_decoder(
    cluster: StartCluster,
) -> None:
    async with cluster() as c:
        history = [LONG]
        decoders = set()
        for turn in range(1, 5):
            answer = await c.chat(*history, conversation="task-42", stream=turn % 2 == 0, max_tokens=5)
            assert (answer.status, answer.turn) == (200, turn), answer.body
            decoders.add(answer.decoder)
            history += [answer.text, f"tool output {turn}"]
        assert len(decoders) == 1, "one pin for life"
        (prefill,) = c.prefillers[0].legs("prefill")
        assert prefill.json["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
        pinned = c.decoder(decoders.pop())
        assert [leg.transferred_tokens > 0 for leg in pinned.legs("decode")] == [True, False, False, False]
        assert all(leg.computed_tokens < 40 for leg in pinned.legs("decode")), "only what is new is computed"
        assert (await c.settled())["booked_blocks"] > 0, "an idle conversation keeps its blocks"


async def test_the_prefill_leg_asks_for_one_token_and_the_decode_leg_for_what_the_client_asked(
    cluster: StartCluster,
) -> None:
    async with cluster() as c:
        body = chat_body(LONG, stream=True, max_tokens=7, min_tokens=3, temperature=0.25)
        assert (await c.post(body | {"stream_options": {"include_usage": True}})).status == 200
        (prefill,), (decode,) = (
            c.prefillers[0].legs("prefill"),
            [leg for mock in c.decoders for leg in mock.legs("decode")],
        )
        assert prefill.json["max_tokens"] == 1
        assert prefill.json.get("stream") in (None, False)
        assert not {"stream_options", "min_tokens"} & set(prefill.json)
        assert (decode.json["max_tokens"], decode.json["min_tokens"], decode.json["stream"]) == (7, 3, True)
        assert decode.json["kv_transfer_params"]["do_remote_prefill"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_are_served_like_chats(cluster: StartCluster, stream: bool) -> None:
    async with cluster() as c:
        answer = await c.post(
            {"model": "mock", "prompt": LONG, "max_tokens": 4, "stream": stream}, path=COMPLETIONS
        )
        assert answer.status == 200, answer.body
        assert len(answer.text.split()) == 4
        assert len(c.prefillers[0].legs("prefill")) == 1


async def test_a_fleet_without_prefillers_prefills_on_the_decoder(cluster: StartCluster) -> None:
    async with cluster(prefillers=0) as c:
        answer = await c.chat(LONG)
        assert answer.status == 200
        (decode,) = c.decoder(answer.decoder).legs("decode")
        assert "kv_transfer_params" not in decode.json


ODD = (
    b'{ "model":"mock",\n\t"x_unknown" : {"b":[1,2.50,1e2,-0,9007199254740993],"a":"\\u00e9\\/"} ,'
    b'"messages":[{"role":"user","content":"hi \xc3\xa9","x":null}],  "temperature":0.70,"x_seed":18446744073709551615,'
    b'"tools":[{"type":"function","function":{"name":"f","strict":true}}], "x_dup":1, "x_dup":2 }'
)


async def test_a_later_turns_body_reaches_the_worker_byte_for_byte(cluster: StartCluster) -> None:
    async with cluster() as c:
        assert (await c.chat("hello", conversation="a")).status == 200
        answer = await c.post(ODD, conversation="a")
        assert answer.status == 200
        assert c.decoder(answer.decoder).legs("decode")[-1].body == ODD


async def test_what_is_spliced_in_leaves_every_other_byte_alone(cluster: StartCluster) -> None:
    async with cluster() as c:
        answer = await c.post(ODD, conversation="a")
        assert answer.status == 200
        decode = c.decoder(answer.decoder).legs("decode")[0].body
        start = decode.index(b'"kv_transfer_params"')
        params = decode[start : decode.rindex(b"}", 0, len(decode) - 1) + 1]
        rest = decode.replace(params, b"", 1)
        assert rest.replace(b",", b"").replace(b" ", b"") == ODD.replace(b",", b"").replace(b" ", b"")
        prefill = c.prefillers[0].legs("prefill")[0].body
        for piece in (
            b'"x_unknown" : {"b":[1,2.50,1e2,-0,9007199254740993],"a":"\\u00e9\\/"}',
            b'"temperature":0.70',
        ):
            assert piece in prefill
            assert piece in decode


async def test_an_answer_that_is_not_streamed_comes_back_byte_for_byte(cluster: StartCluster) -> None:
    body = '{ "id":"x", "choices":[ {"message":{"content":"\\u00e9"}} ],"usage":{"prompt_tokens":3.0e0}, "x":1e5 }\n'
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(body=body, headers={"x-engine": "e7"}))
        answer = await c.chat("hi")
        assert answer.body == body.encode()
        assert answer.headers["x-engine"] == "e7"
        assert int(answer.headers["content-length"]) == len(answer.body)


async def direct(c: object, url: str, body: dict[str, object]) -> bytes:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=body) as response:
        return await response.read()


def without_ids(stream: bytes) -> list[object]:
    """The events of a stream without what differs from one answer to the next."""
    events = []
    for event in Answer(200, {"content-type": "text/event-stream"}, stream).events:
        if isinstance(event, dict):
            event.pop("id", None)
            event.pop("created", None)
        events.append(event)
    return events


@pytest.mark.parametrize("split", [None, 1, 7, 61])
@pytest.mark.parametrize("asked", [False, True])
async def test_usage_is_hidden_unless_the_client_asked(
    cluster: StartCluster, asked: bool, split: int | None
) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        body = chat_body("hi", stream=True, max_tokens=6)
        if asked:
            body["stream_options"] = {"include_usage": True}
        c.decoders[0].arm(Fault(split=split))
        answer = await c.post(body)
        assert c.decoders[0].requests[0].json["stream_options"]["include_usage"] is True, (
            "the router wants it"
        )
        expected = await direct(c, c.decoders[0].url, body)
        found, wanted = without_ids(answer.body), without_ids(expected)
        for events in (found, wanted):
            for event in events:
                if isinstance(event, dict) and "usage" in event:
                    event["usage"].pop("prompt_tokens_details")
        assert found == wanted, "the client sees what it would see without a router"
        assert any(isinstance(event, dict) and event.get("usage") for event in found) is asked


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_handed_over_is_not_counted_as_cached(cluster: StartCluster, stream: bool) -> None:
    async with cluster(prefillers=1, decoders=1) as c:
        fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

        def told(answer: Answer) -> int:
            usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        first = await c.chat(LONG, conversation="a", max_tokens=4, **fields)
        pulled = c.decoders[0].legs("decode")[0].transferred_tokens
        assert pulled > 200
        assert told(first) == pulled, "the client gets its decoder's own words, byte for byte"
        assert await c.metric("conserve_cached_tokens_total") == 0, "all of it was computed for this turn"
        second = await c.chat(LONG, first.text, "more", conversation="a", max_tokens=4, **fields)
        resident = c.decoders[0].legs("decode")[1].cached_tokens
        assert resident > 200
        assert told(second) == resident
        assert await c.metric("conserve_cached_tokens_total") == resident
        await c.chat(LONG, conversation="b", max_tokens=4, **fields)
        found = c.prefillers[0].legs("prefill")[1].cached_tokens
        assert found > 200
        assert await c.metric("conserve_cached_tokens_total") == resident + found, (
            "another conversation's prompt was found at the prefiller"
        )


async def test_a_stream_is_passed_on_as_it_comes(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(stall_at=700))
        async with c.request(chat_body("hi", stream=True, max_tokens=9)) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            got = b""
            while b'"content":' not in got.partition(b"\n\n")[2]:
                got += await response.content.readany()
        assert b"[DONE]" not in got, "the first tokens are here though the worker never ends"


async def test_gzip_from_a_worker_is_passed_on(cluster: StartCluster) -> None:
    import gzip

    async with cluster(prefillers=0, decoders=1) as c:
        c.decoders[0].arm(Fault(gzip=True))
        answer = await c.chat("hi", max_tokens=3)
        assert answer.status == 200
        content = answer.body
        if answer.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        assert len(json.loads(content)["choices"][0]["message"]["content"].split()) == 3


async def test_headers_are_kept_both_ways_but_not_those_of_the_hop(cluster: StartCluster) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with cluster(prefillers=1, decoders=1) as c:
        c.decoders[0].arm(Fault(headers={"x-engine": "e7", "keep-alive": "timeout=5"}))
        answer = await c.post(
            chat_body("hi"),
            conversation="a",
            key="sk-secret",
            headers={"traceparent": trace, "x-request-id": "req-7", "x-custom": "é", "te": "trailers"},
        )
        assert answer.headers["x-engine"] == "e7"
        assert "keep-alive" not in answer.headers
        assert answer.headers["x-request-id"] == "req-7"
        assert len(answer.headers["x-conserve-conversation"]) == 32
        assert answer.headers["x-conserve-decoder"] == "d0"
        assert answer.headers["x-conserve-turn"] == "1"
        for leg in (*c.prefillers[0].requests, *c.decoders[0].requests):
            assert leg.header("traceparent") == trace
            assert leg.header("x-custom") is not None
            assert leg.header("x-conversation-id") == "a"
            assert leg.header("te") is None
            assert leg.header("authorization") is None, "a client's key is not the workers' affair"
            assert leg.header("content-type") == "application/json"
            assert int(leg.header("content-length") or 0) == len(leg.body)
            assert [name for name, _ in leg.headers].count(b"host") == 1
        assert (c.decoders[0].requests[0].header("x-request-id") or "").startswith("req-7")


async def test_a_request_without_an_id_gets_one(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        answer = await c.chat("hi")
        assert answer.headers["x-request-id"]


async def test_the_clients_key_goes_on_where_configured(cluster: StartCluster) -> None:
    async with cluster(decoders=1, forward_authorization=True) as c:
        await c.post(chat_body("hi"), key="sk-client")
        for leg in (*c.prefillers[0].requests, *c.decoders[0].requests):
            assert leg.header("authorization") == "Bearer sk-client"


async def test_a_worker_key_is_sent_instead_of_the_clients(cluster: StartCluster) -> None:
    async with cluster(decoders=1, worker_key="sk-worker") as c:
        await c.post(chat_body("hi"), key="sk-client")
        for leg in (*c.prefillers[0].requests, *c.decoders[0].requests):
            assert [value for name, value in leg.headers if name == b"authorization"] == [b"Bearer sk-worker"]


async def test_large_bodies_pass(cluster: StartCluster) -> None:
    async with cluster(
        prefillers=1, decoders=1, worker={"kv_blocks": 100_000, "max_model_len": 1_000_000}
    ) as c:
        answer = await c.chat("x" * 2_000_000, conversation="big", max_tokens=2)
        assert answer.status == 200, answer.body
        assert len(c.decoders[0].requests[0].json["messages"][0]["content"]) == 2_000_000
