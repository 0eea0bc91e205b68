"""What a worker refuses: with the right status, as an OpenAI error object, and with nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.harness import Reply, Worker

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


NOT_VLLM = pytest.mark.not_for(
    "vllm", reason="it serves most of these fields, and words and numbers its refusals itself"
)


def refused(reply: Reply, status: int = 400) -> dict[str, Any]:
    assert reply.status == status, reply.body
    error: dict[str, Any] = reply.body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@NOT_VLLM
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "ls"}}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 1),
        ("logit_bias", {"5": 10}),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(worker: Worker, field: str, value: object) -> None:
    error = refused(worker.chat(HELLO, **{field: value}))
    assert error["param"] == field
    assert field in error["message"]


@NOT_VLLM
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("logprobs", False),
        ("response_format", {"type": "text"}),
        ("tool_choice", "none"),
        ("presence_penalty", 0.0),
        ("logit_bias", {}),
        ("stop", None),
    ],
)
def test_value_that_changes_nothing_is_accepted(worker: Worker, field: str, value: object) -> None:
    assert worker.chat(HELLO, max_tokens=1, **{field: value}).status == 200


@NOT_VLLM
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"kv_transfer_params": []}, "kv_transfer_params"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": "half of a pair: \ud800"}, "cache_salt"),
    ],
)
def test_value_out_of_range_is_named(worker: Worker, fields: dict[str, object], param: str) -> None:
    body = {"messages": HELLO, "temperature": 0, **fields}
    assert refused(worker.post(CHAT, body))["param"] == param
    assert worker.send("GET", "/health")[0] == 200, "one client's mistake is nobody else's"


@NOT_VLLM
@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        [1],
        [{"content": "no role"}],
        [{"role": "pope", "content": "x"}],
        [{"role": ["user"], "content": "x"}],
        [{"role": {}, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ],
)
def test_messages_that_are_none_are_refused(worker: Worker, messages: object) -> None:
    assert "messages" in refused(worker.post(CHAT, {"messages": messages}))["message"]


@NOT_VLLM
@pytest.mark.parametrize("prompt", [None, "", [], [1, "a"], ["two", "prompts"], [[1, 2]], [-1], [10**9], 5])
def test_prompts_that_are_none_are_refused(worker: Worker, prompt: object) -> None:
    assert refused(worker.complete(prompt))["param"] == "prompt"


@NOT_VLLM
@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b'{"a":' * 10_000, b"[" * 100_000],
    ids=["empty", "cut", "list", "null", "string", "not UTF-8", "nested objects", "nested lists"],
)
def test_body_that_is_no_object_is_refused(worker: Worker, raw: bytes) -> None:
    refused(worker.post(CHAT, raw))


@NOT_VLLM
def test_body_over_the_limit_is_refused(worker: Worker) -> None:
    status, _body = worker.send("POST", CHAT, b" " * 1_100_000)
    assert status == 413


@NOT_VLLM
def test_unknown_model_is_404(worker: Worker) -> None:
    error = refused(worker.post(CHAT, {"model": "other", "messages": HELLO}), 404)
    assert error["code"] == "model_not_found"


@NOT_VLLM
def test_unknown_path_is_404_and_wrong_method_405(worker: Worker) -> None:
    assert worker.get("/v1/nothing").status == 404
    assert worker.get(CHAT).status == 405


@NOT_VLLM
def test_prompt_over_the_context_is_refused_as_openai_does(worker: Worker) -> None:
    limit = worker.get("/v1/models").body["data"][0]["max_model_len"]
    assert refused(worker.complete([1] * limit, max_tokens=1))["code"] == "context_length_exceeded"
    assert refused(worker.complete([1] * 10, max_tokens=limit))["code"] == "context_length_exceeded"
    assert worker.complete([1] * (limit - 1), max_tokens=1).status == 200


@NOT_VLLM
def test_refusals_leave_nothing_behind(worker: Worker) -> None:
    refused(worker.chat(HELLO, n=2))
    worker.await_metric("vllm:num_requests_running", 0)
    worker.await_metric("vllm:num_requests_waiting", 0)
    worker.await_metric("vllm:kv_cache_usage_perc", 0)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "other"}, 404),
        ({"max_tokens": -1}, 400),
        ({"max_tokens": "many"}, 400),
        ({"max_tokens": 1_000_000}, 400),
        ({"temperature": -1}, 400),
        ({"top_p": 1.5}, 400),
        ({"min_tokens": 5, "max_tokens": 4}, 400),
        ({"prompt": [1] * 5000}, 400),
        ({"prompt": []}, 400),
        ({"stream": False, "stream_options": {"include_usage": True}}, 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_every_engine_refuses_has_its_status_and_is_an_error_object(
    worker: Worker, fields: dict[str, object], status: int
) -> None:
    reply = worker.post("/v1/completions", {"prompt": "abc", "max_tokens": 2, **fields})
    assert reply.status == status, reply.body
    assert reply.body["error"]["message"]
    assert worker.send("GET", "/health")[0] == 200
    worker.await_metric("vllm:num_requests_running", 0)
