"""Chats and completions: one object, or a stream that says the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.harness import Worker, text_of

HELLO = [{"role": "user", "content": "Say something about rivers."}]


def joined(events: list[Any], kind: str) -> str:
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return "".join(
        (choice["delta"].get("content") or "") if kind == "chat" else choice["text"] for choice in choices
    )


def test_chat_is_an_openai_object(worker: Worker) -> None:
    reply = worker.chat(HELLO, max_tokens=7)
    assert reply.status == 200
    body = reply.body
    assert body["object"] == "chat.completion"
    assert body["model"] == worker.model
    assert isinstance(body["id"], str)
    assert isinstance(body["created"], int)
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"


def test_completion_is_an_openai_object(worker: Worker) -> None:
    body = worker.complete("Rivers are", max_tokens=7).body
    assert body["object"] == "text_completion"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 7


def test_greedy_answer_is_the_same_each_time(worker: Worker) -> None:
    texts = {text_of(worker.chat(HELLO, max_tokens=12)) for _ in range(3)}
    assert len(texts) == 1


def test_usage_counts_and_says_what_was_resident(worker: Worker) -> None:
    messages = [{"role": "user", "content": "A prompt that nobody sent before. " * 12}]
    first = worker.chat(messages, max_tokens=3).body["usage"]
    assert first["completion_tokens"] == 3
    assert first["total_tokens"] == first["prompt_tokens"] + 3
    again = worker.chat(messages, max_tokens=3).body["usage"]
    assert again["prompt_tokens"] == first["prompt_tokens"]
    resident = again["prompt_tokens_details"]["cached_tokens"]
    assert first["prompt_tokens"] - 128 <= resident <= first["prompt_tokens"], "all but at most one block"


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_stream_says_what_the_whole_answer_says(worker: Worker, kind: str) -> None:
    if kind == "chat":
        whole = text_of(worker.chat(HELLO, max_tokens=20))
        events = list(worker.stream("/v1/chat/completions", messages=HELLO, max_tokens=20))
        assert events[0]["object"] == "chat.completion.chunk"
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    else:
        whole = text_of(worker.complete("Rivers", max_tokens=20))
        events = list(worker.stream("/v1/completions", prompt="Rivers", max_tokens=20))
        assert events[0]["object"] == "text_completion"
    assert events[-1] == "[DONE]"
    assert joined(events, kind) == whole
    reasons = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) <= {None}
    assert len({event["id"] for event in events[:-1]}) == 1


def test_stream_comes_in_pieces(worker: Worker) -> None:
    events = list(worker.stream("/v1/chat/completions", messages=HELLO, max_tokens=20))
    assert sum(1 for event in events[:-1] if event["choices"][0]["delta"].get("content")) >= 10


def test_usage_ends_a_stream_only_when_asked_for(worker: Worker) -> None:
    asked = list(
        worker.stream(
            "/v1/chat/completions", messages=HELLO, max_tokens=5, stream_options={"include_usage": True}
        )
    )
    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["completion_tokens"] == 5
    assert all(event.get("usage") is None for event in asked[:-2])
    plain = list(worker.stream("/v1/chat/completions", messages=HELLO, max_tokens=5))
    assert all(not event.get("usage") and event["choices"] for event in plain[:-1])


def test_newer_name_of_the_limit_counts(worker: Worker) -> None:
    assert worker.chat(HELLO, max_completion_tokens=4).body["usage"]["completion_tokens"] == 4
    both = worker.chat(HELLO, max_completion_tokens=4, max_tokens=9).body
    assert both["usage"]["completion_tokens"] == 4


def test_stop_string_across_tokens_ends_the_text(worker: Worker) -> None:
    whole = text_of(worker.complete("Rivers", max_tokens=20))
    stop = whole[9:12]
    at = whole.index(stop)
    cut = worker.complete("Rivers", max_tokens=20, stop=[stop, "not in there"])
    assert text_of(cut) == whole[:at]
    assert cut.body["choices"][0]["finish_reason"] == "stop"
    events = list(worker.stream("/v1/completions", prompt="Rivers", max_tokens=20, stop=stop))
    assert joined(events, "text") == whole[:at]


def test_seed_repeats_a_sampled_answer(worker: Worker) -> None:
    def drawn(seed: int) -> str:
        return text_of(worker.chat(HELLO, temperature=1.5, seed=seed, max_tokens=16))

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_token_ids_are_a_prompt(worker: Worker) -> None:
    tokens = worker.post("/tokenize", {"prompt": "Rivers are long"}).body["tokens"]
    by_text = worker.complete("Rivers are long", max_tokens=6)
    by_ids = worker.complete(tokens, max_tokens=6)
    assert text_of(by_ids) == text_of(by_text)
    assert by_ids.body["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_token_ids_are_named_on_request(worker: Worker, kind: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 6, "return_token_ids": True}
    if kind == "chat":
        path, fields = "/v1/chat/completions", fields | {"messages": HELLO}
        prompt = worker.post("/tokenize", {"messages": HELLO}).body["tokens"]
    else:
        path, fields = "/v1/completions", fields | {"prompt": "Rivers"}
        prompt = worker.post("/tokenize", {"prompt": "Rivers"}).body["tokens"]
    whole = worker.post(path, {"temperature": 0, **fields}).body
    (choice,) = whole["choices"]
    assert (whole if kind == "chat" else choice)["prompt_token_ids"] == prompt
    assert len(choice["token_ids"]) == 6
    events = list(worker.stream(path, **fields))[:-1]
    first = events[0] if kind == "chat" else events[0]["choices"][0]
    assert first["prompt_token_ids"] == prompt
    told = [token for event in events for token in event["choices"][0].get("token_ids", ())]
    assert told == choice["token_ids"], "the pieces of a stream name the same tokens"
    unasked = worker.post(path, {**fields, "temperature": 0, "return_token_ids": False}).body
    for place in (unasked, unasked["choices"][0]):
        assert not any(place.get(key) for key in ("token_ids", "prompt_token_ids"))


def test_text_parts_are_joined(worker: Worker) -> None:
    parts = [{"type": "text", "text": "Say something about rivers."}]
    assert text_of(worker.chat([{"role": "user", "content": parts}], max_tokens=6)) == text_of(
        worker.chat(HELLO, max_tokens=6)
    )


def test_tool_turns_are_read(worker: Worker, engine: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
    messages: list[dict[str, Any]] = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "README.md"},
    ]
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
    with_call = worker.chat(messages, max_tokens=4, tools=tools, tool_choice="auto")
    assert with_call.status == 200
    if engine == "vllm":
        return  # What of a call the prompt shows is up to the model's chat template; this one's shows nothing.
    other = {**call, "function": {"name": "cat", "arguments": "{}"}}
    messages[1] = {"role": "assistant", "content": None, "tool_calls": [other]}
    assert (
        worker.chat(messages, max_tokens=4).body["usage"]["prompt_tokens"]
        != with_call.body["usage"]["prompt_tokens"]
    )


def test_unknown_fields_are_ignored(worker: Worker) -> None:
    reply = worker.chat(
        HELLO, max_tokens=6, vendor_flag={"x": [1]}, user="me", metadata={"a": "b"}, store=False
    )
    assert text_of(reply) == text_of(worker.chat(HELLO, max_tokens=6))
