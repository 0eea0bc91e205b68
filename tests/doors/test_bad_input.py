"""Requests that cannot be served: each has its status and code, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster import COMPLETIONS, Cluster, chat_body
from tests.support.raw import connect, request

from .conftest import StartCluster

MESSAGES = '"messages":[{"role":"user","content":"hi"}]'

BODIES: dict[str, tuple[bytes, str, str | None]] = {
    "not JSON": (b"hello", "invalid_json", None),
    "not JSON, though it begins as null does": (b"not json", "invalid_json", None),
    "an array cut off": (b"[1", "invalid_json", None),
    "cut off": (b'{"model":"mock",', "invalid_json", None),
    "two values": (f'{{"model":"mock",{MESSAGES}}} {{}}'.encode(), "invalid_json", None),
    "a NaN": (f'{{"model":"mock",{MESSAGES},"seed":NaN}}'.encode(), "invalid_json", None),
    "not UTF-8": (f'{{"model":"mock",{MESSAGES},"user":"'.encode() + b'\xff\xfe"}', "invalid_utf8", None),
    "UTF-16": (f'{{"model":"mock",{MESSAGES}}}'.encode("utf-16"), "invalid_utf8", None),
    "empty": (b"", "empty_body", None),
    "white space": (b" \r\n\t", "empty_body", None),
    "an array": (b"[]", "invalid_type", None),
    "a string": (b'"hi"', "invalid_type", None),
    "null": (b"null", "invalid_type", None),
    "nested 10,000 deep": (
        f'{{"model":"mock",{MESSAGES},"x":{"[" * 10_000}{"]" * 10_000}}}'.encode(),
        "nesting_too_deep",
        None,
    ),
    "messages opened 10,000 times": (
        b'{"model":"mock","messages":' + b"[" * 10_000,
        "nesting_too_deep",
        None,
    ),
    "only opened 10,000 times": (b"[" * 10_000, "invalid_type", None),
    "no model": (f"{{{MESSAGES}}}".encode(), "missing_field", "model"),
    "model a number": (f'{{"model":7,{MESSAGES}}}'.encode(), "invalid_type", "model"),
    "model null": (f'{{"model":null,{MESSAGES}}}'.encode(), "invalid_type", "model"),
    "no messages": (b'{"model":"mock"}', "missing_field", "messages"),
    "messages a string": (b'{"model":"mock","messages":"hi"}', "invalid_type", "messages"),
    "messages null": (b'{"model":"mock","messages":null}', "invalid_type", "messages"),
    "messages empty": (b'{"model":"mock","messages":[]}', "invalid_value", "messages"),
    "stream a string": (f'{{"model":"mock",{MESSAGES},"stream":"yes"}}'.encode(), "invalid_type", "stream"),
    "stream a number": (f'{{"model":"mock",{MESSAGES},"stream":1}}'.encode(), "invalid_type", "stream"),
    "model twice": (f'{{"model":"mock",{MESSAGES},"model":"other"}}'.encode(), "duplicate_field", "model"),
    "messages twice": (f'{{"model":"mock",{MESSAGES},{MESSAGES}}}'.encode(), "duplicate_field", "messages"),
    "stream twice, once escaped": (
        f'{{"model":"mock",{MESSAGES},"stream":true,"stre\\u0061m":false}}'.encode(),
        "duplicate_field",
        "stream",
    ),
    "handoff parameters of its own": (
        f'{{"model":"mock",{MESSAGES},"kv_transfer_params":{{"do_remote_prefill":true}}}}'.encode(),
        "unsupported_field",
        "kv_transfer_params",
    ),
    "handoff parameters among arguments of the engine": (
        f'{{"model":"mock",{MESSAGES},"vllm_xargs":{{"a":[1],"kv_transfer_params":"x"}}}}'.encode(),
        "unsupported_field",
        "vllm_xargs.kv_transfer_params",
    ),
    "parameters for encodings of images": (
        f'{{"model":"mock",{MESSAGES},"ec_transfer_params":{{"hash":{{"peer_host":"x"}}}}}}'.encode(),
        "unsupported_field",
        "ec_transfer_params",
    ),
    "the same among arguments of the engine": (
        f'{{"model":"mock",{MESSAGES},"vllm_xargs":{{"ec_transfer_params":"x"}}}}'.encode(),
        "unsupported_field",
        "vllm_xargs.ec_transfer_params",
    ),
}


async def nothing_left(c: Cluster) -> None:
    await c.nothing_booked()
    assert (await c.fleet())["conversations"] == 0
    assert [mock.requests for mock in c.workers] == [[] for _ in c.workers], "no worker was asked"


async def test_bodies_that_cannot_be_read_are_refused_by_name(cluster: StartCluster) -> None:
    async with cluster() as c:
        for name, (body, code, param) in BODIES.items():
            answer = await c.post(body, conversation="a")
            assert (answer.status, answer.code, answer.json["error"]["param"]) == (400, code, param), (
                name,
                answer.body,
            )
            assert answer.headers["content-type"].startswith("application/json")
        await nothing_left(c)


async def test_a_long_body_that_is_wrong_at_its_end_is_refused_with_the_place(cluster: StartCluster) -> None:
    # It comes in pieces, which are looked at as they come.
    long = b'{"model":"mock","messages":[{"role":"user","content":"' + "é漢\\n".encode() * 60_000
    async with cluster() as c:
        for rest, code, at in [
            (b'\xe9"}]}', "invalid_utf8", len(long)),
            (b'"}],"x":NaN}', "invalid_json", len(long) + 8),
            (b'"}],"x":' + b"[" * 600, "nesting_too_deep", len(long) + 8 + 511),
            (b'"}]', "invalid_json", len(long) + 3),
        ]:
            answer = await c.post(long + rest, conversation="a")
            assert (answer.status, answer.code) == (400, code)
            assert f"at byte {at}" in answer.json["error"]["message"]
        await nothing_left(c)


INSIDE = {
    b'["hi"]': ("invalid_type", "messages[0]"),
    b'[{"role":"user","role":"tool"}]': ("duplicate_field", "messages[0].role"),
    b'[{"role":usr}]': ("invalid_json", None),
}


async def test_messages_are_read_where_only_they_tell_the_conversation(cluster: StartCluster) -> None:
    async with cluster() as c:
        for messages, (code, param) in INSIDE.items():
            answer = await c.post(b'{"model":"mock","messages":' + messages + b"}")
            assert (answer.status, answer.code, answer.json["error"]["param"]) == (400, code, param), messages
        await nothing_left(c)


async def test_messages_of_a_named_conversation_are_the_workers_to_refuse(cluster: StartCluster) -> None:
    async with cluster() as c:
        for messages in (b'["hi"]', b'[{"role":usr}]'):
            answer = await c.post(b'{"model":"mock","messages":' + messages + b"}", conversation="a")
            assert answer.status == 400
            assert answer.json["error"]["type"] == "BadRequestError", "the worker's own words"
        await c.nothing_booked()


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}, "missing_field", "prompt"),
        ({"model": "mock", "prompt": 7}, "invalid_type", "prompt"),
        ({"model": "mock", "prompt": []}, "invalid_value", "prompt"),
    ],
)
async def test_completions_need_a_prompt(
    cluster: StartCluster, body: dict[str, Any], code: str, param: str
) -> None:
    async with cluster() as c:
        answer = await c.post(body, path=COMPLETIONS)
        assert (answer.status, answer.code, answer.json["error"]["param"]) == (400, code, param)
        await nothing_left(c)


async def test_a_body_above_the_limit_is_refused_and_one_at_the_limit_is_not(cluster: StartCluster) -> None:
    limit = 100_000
    async with cluster(max_body_bytes=limit) as c:
        frame = len(json.dumps(chat_body("")))
        assert (await c.post(chat_body("x" * (limit - frame)))).status == 200
        answer = await c.post(chat_body("x" * (limit + 1 - frame)))
        assert answer.status == 413
        assert answer.code == "payload_too_large"
        assert str(limit) in answer.json["error"]["message"], "the message names the limit"


async def test_100_megabytes_are_refused_from_the_length_alone(cluster: StartCluster) -> None:
    async with cluster() as c, connect(c.url) as raw:
        await raw.send(request("/v1/chat/completions", b"", f"content-length: {100 * 1024 * 1024}"))
        status, headers = await raw.head()
        assert (status, headers["connection"]) == (413, "close")
        await nothing_left(c)


async def test_100_megabytes_sent_in_full_are_refused_with_an_answer(cluster: StartCluster) -> None:
    async with cluster() as c:
        answer = await c.post(b"x" * (100 * 1024 * 1024))
        assert (answer.status, answer.code) == (413, "payload_too_large")
        await nothing_left(c)


async def test_a_chunked_body_is_refused_when_it_passes_the_limit(cluster: StartCluster) -> None:
    async with cluster(max_body_bytes=1_000_000) as c, connect(c.url) as raw:
        await raw.send(request("/v1/chat/completions", b"", "transfer-encoding: chunked"))
        piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        for _ in range(20):
            await raw.send(piece)
        status, _ = await raw.head()
        assert status == 413
        await nothing_left(c)


async def test_a_body_that_does_not_arrive_is_given_up(cluster: StartCluster) -> None:
    async with cluster(body_timeout_s=0.1) as c, connect(c.url) as raw:
        await raw.send(request("/v1/chat/completions", b'{"model"', "content-length: 100"))
        status, _ = await raw.head()
        assert status == 408
        await nothing_left(c)


@pytest.mark.parametrize("identity", [b"x" * 10_240, b"x" * 257, b"tab\there", b"", b"   "])
async def test_a_conversation_id_must_be_short_and_printable(cluster: StartCluster, identity: bytes) -> None:
    async with cluster() as c, connect(c.url) as raw:
        body = json.dumps(chat_body("hi")).encode()
        plain = request("/v1/chat/completions", body, "x-conversation-id: HERE")
        await raw.send(plain.replace(b"HERE", identity))
        status, headers = await raw.head()
        content = json.loads(await raw.reader.readexactly(int(headers["content-length"])))
        assert (status, content["error"]["code"]) == (400, "invalid_conversation_id"), content
        await nothing_left(c)


@pytest.mark.parametrize("identity", [b"\x00", b"a\x01b", b"\x7f"])
async def test_what_http_itself_forbids_in_a_header_is_400(cluster: StartCluster, identity: bytes) -> None:
    async with cluster() as c, connect(c.url) as raw:
        plain = request(
            "/v1/chat/completions", json.dumps(chat_body("hi")).encode(), "x-conversation-id: HERE"
        )
        await raw.send(plain.replace(b"HERE", identity))
        assert (await raw.head())[0] == 400
        await nothing_left(c)


async def test_an_id_at_the_limit_and_of_any_bytes_is_taken(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        for identity in (b"x" * 256, "ünïcode".encode(), b"\xff\xfe"):
            async with connect(c.url) as raw:
                plain = request(
                    "/v1/chat/completions", json.dumps(chat_body("hi")).encode(), "x-conversation-id: HERE"
                )
                await raw.send(plain.replace(b"HERE", identity))
                assert (await raw.head())[0] == 200


async def test_a_conversation_id_in_the_body_has_the_same_limits(cluster: StartCluster) -> None:
    async with cluster() as c:
        for value in ("x" * 10_240, "a\u0000b", "a\nb"):
            answer = await c.chat("hi", conversation=None, prompt_cache_key=value)
            assert (answer.status, answer.code) == (400, "invalid_conversation_id"), answer.body
        await nothing_left(c)


async def test_an_unknown_model_is_404(cluster: StartCluster) -> None:
    async with cluster() as c:
        answer = await c.post(chat_body("hi") | {"model": "gpt-17"})
        assert (answer.status, answer.code) == (404, "model_not_found")
        assert "gpt-17" in answer.json["error"]["message"]
        await nothing_left(c)


async def test_a_prompt_longer_than_any_decoder_is_refused_as_openai_does(cluster: StartCluster) -> None:
    async with cluster(worker={"kv_blocks": 64, "max_model_len": 900}) as c:
        answer = await c.chat("word " * 4_000)
        assert (answer.status, answer.code) == (400, "context_length_exceeded"), answer.body
        await nothing_left(c)


async def test_a_workers_own_refusal_reaches_the_client(cluster: StartCluster) -> None:
    async with cluster(prefillers=0, decoders=1) as c:
        answer = await c.chat("hi", stream=False, stream_options={"include_usage": True})
        assert answer.status == 400
        assert "stream_options" in answer.json["error"]["message"].lower().replace(" ", "_")
        await c.nothing_booked()


async def test_unknown_routes_and_methods_answer_error_objects(cluster: StartCluster) -> None:
    async with cluster(decoders=1) as c:
        missing = await c.get("/v1/embeddings")
        assert (missing.status, missing.code) == (404, "not_found")
        assert "did you mean" not in missing.json["error"]["message"]
        for path in ("/chat/completions", "/v1/v1/chat/completions"):
            message = (await c.post(chat_body("hi"), path=path)).json["error"]["message"]
            assert message == f"there is no route POST {path}; did you mean /v1/chat/completions?"
        method = await c.get("/v1/chat/completions")
        assert (method.status, method.code, method.headers["allow"]) == (405, "method_not_allowed", "POST")
