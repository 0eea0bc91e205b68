"""The binding of the state machine: what crosses the border, and that nothing stays behind. Its decisions are tested in Rust."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conserve import ConfigError, ManualClock, Router
from conserve._core import (
    Call,
    Collect,
    Dispatch,
    Dispatcher,
    Finish,
    Listen,
    Relay,
    Reply,
    Stream,
    Upstream,
    Wait,
)

MakeRouter = Callable[..., Router]
CHAT = "/v1/chat/completions"
EVENT_STREAM = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]
PARAMS = b'{"do_remote_prefill":true,"remote_engine_id":"e0","remote_block_ids":[1,2],"remote_host":"p0","remote_port":5600}'


def body(content: str = "Hello", *, stream: bool = True, **more: Any) -> bytes:
    message = {"role": "user", "content": content}
    return json.dumps({"model": "m", "messages": [message], "stream": stream, **more}).encode()


def headers(conversation: str = "task-42", key: bytes | None = None) -> list[tuple[bytes, bytes]]:
    named = [(b"x-conversation-id", conversation.encode()), (b"content-type", b"application/json")]
    return named if key is None else [*named, (b"authorization", b"Bearer " + key)]


def prefilled(tokens: int = 10) -> bytes:
    usage = b'{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}' % (tokens, tokens + 1)
    return b'{"id":"1","choices":[],"usage":%s,"kv_transfer_params":%s}' % (usage, PARAMS)


def stream_to(dispatch: Dispatch) -> Upstream:
    """Start a turn and bring it to its decoder."""
    match dispatch.start():
        case Call(prefill):
            assert prefill.phase == "prefill"
        case other:
            pytest.fail(f"not a prefill: {other!r}")
    match dispatch.answered(200, JSON, prefilled()):
        case Stream(upstream):
            return upstream
        case other:
            pytest.fail(f"not a stream: {other!r}")


def booked(router: Router) -> int:
    return sum(w.booked_blocks for w in router.snapshot().workers)


def test_first_turn_goes_over_both_workers(make_router: MakeRouter) -> None:
    router = make_router()
    dispatcher = Dispatcher(router)
    dispatch = dispatcher.open(CHAT, headers(), body())
    first = dispatch.start()
    assert isinstance(first, Call)
    prefill = first.upstream
    assert (prefill.url, prefill.worker_name, prefill.phase) == ("http://p0:8000" + CHAT, "p0", "prefill")
    assert json.loads(prefill.body)["kv_transfer_params"]["do_remote_decode"] is True
    assert prefill.body is prefill.body, "converted once"
    assert all(isinstance(part, bytes) for pair in prefill.headers for part in pair)
    assert min(prefill.connect_timeout_s, prefill.first_byte_timeout_s, prefill.idle_timeout_s) > 0
    second = dispatch.answered(200, JSON, prefilled())
    assert isinstance(second, Stream)
    assert second.upstream.phase == "decode"
    assert json.loads(second.upstream.body)["kv_transfer_params"] == json.loads(PARAMS)
    assert isinstance(dispatch.head(200, EVENT_STREAM), Listen), "nothing for the client yet"
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    assert isinstance(dispatch.heard(role), Listen)
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    match dispatch.heard(piece):
        case Relay(200, relayed, passed):
            assert (b"content-type", b"text/event-stream") in relayed
            assert passed == role + piece
        case other:
            pytest.fail(f"not relayed: {other!r}")
    assert dispatch.conversation is not None
    assert "blocks free, most of" in (dispatch.reason or ""), "why there, with the numbers"
    assert dispatch.chunk(piece) is piece, "what passes unchanged is not copied"
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17}}\n\n'
    assert dispatch.chunk(usage) == b"", "the client did not ask for the usage"
    assert dispatch.chunk(b"data: [DONE]\n\n") + dispatch.end() == b"data: [DONE]\n\n"
    assert dispatch.over
    view = dispatcher.conversation("task-42", headers())
    assert view is not None
    assert (view.phase, view.blocks, view.key) == ("pinned", 2, dispatch.conversation)
    router.check()


def test_later_turn_goes_straight_to_the_decoder(make_router: MakeRouter) -> None:
    router = make_router()
    dispatcher = Dispatcher(router)
    stream = dispatcher.open(CHAT, headers(), body())
    stream_to(stream)
    stream.head(200, EVENT_STREAM)
    stream.heard(b"data: [DONE]\n\n")
    stream.end()
    again = dispatcher.open(CHAT, headers(), body("Hello again", stream=False))
    action = again.start()
    assert isinstance(action, Call)
    assert action.upstream.phase == "decode"
    answer = b'{"choices":[],  "usage":{"prompt_tokens":12,"completion_tokens":3}}'
    match again.answered(200, JSON, answer):
        case Reply(200, _, replied):
            assert replied == answer, "byte for byte"
        case other:
            pytest.fail(f"no reply: {other!r}")
    router.check()


def test_bad_request_is_answered(make_router: MakeRouter) -> None:
    router = make_router()
    action = Dispatcher(router).open(CHAT, headers(), b"not JSON").start()
    assert isinstance(action, Reply)
    assert action.status == 400
    assert json.loads(action.body)["error"]["message"]
    assert router.snapshot().conversations == 0


def test_error_of_the_decoder_is_collected(make_router: MakeRouter) -> None:
    router = make_router()
    dispatch = Dispatcher(router).open(CHAT, headers(), body())
    stream_to(dispatch)
    match dispatch.head(429, [*JSON, (b"retry-after", b"7")]):
        case Collect(limit):
            assert limit > 0
        case other:
            pytest.fail(f"not collected: {other!r}")
    said = b'{"error":{"message":"busy"}}'
    action = dispatch.answered(429, [*JSON, (b"retry-after", b"7")], said)
    assert isinstance(action, Reply)
    assert (action.status, action.body) == (429, said)
    assert (b"retry-after", b"7") in action.headers
    assert booked(router) == 0


def test_broken_stream_ends_with_an_error_event(make_router: MakeRouter) -> None:
    router = make_router()
    dispatch = Dispatcher(router).open(CHAT, headers(), body())
    stream_to(dispatch)
    dispatch.head(200, EVENT_STREAM)
    dispatch.heard(b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n')
    match dispatch.failed("reset"):
        case Finish(data):
            assert b'"error"' in data
        case other:
            pytest.fail(f"not finished: {other!r}")
    router.check()


@pytest.mark.parametrize("kind", ["", "boredom"])
def test_unknown_failure_is_a_value_error(make_router: MakeRouter, kind: Any) -> None:
    dispatch = Dispatcher(make_router()).open(CHAT, headers(), body())
    dispatch.start()
    with pytest.raises(ValueError, match="failure"):
        dispatch.failed(kind)


def test_unknown_path_is_a_value_error(make_router: MakeRouter) -> None:
    with pytest.raises(ValueError, match="/v1/embeddings"):
        Dispatcher(make_router()).open("/v1/embeddings", [], b"{}")


@pytest.mark.parametrize("leave", ["client_gone", "drop"])
def test_client_that_leaves_leaves_nothing(make_router: MakeRouter, leave: str) -> None:
    router = make_router()
    dispatch = Dispatcher(router).open(CHAT, headers(), body())
    dispatch.start()
    assert booked(router) > 0
    if leave == "client_gone":
        dispatch.client_gone()
        dispatch.client_gone()
        assert dispatch.over
    else:
        del dispatch
        gc.collect()
    assert booked(router) == 0
    assert router.snapshot().conversations == 0
    router.check()


async def test_waits_in_line_on_the_loop(make_router: MakeRouter) -> None:
    router = make_router()
    filler = router.turn("filler", prompt_tokens=16 * 80).__enter__()
    filler.finish(output_tokens=0)
    dispatch = Dispatcher(router).open(CHAT, headers(), body())
    action = dispatch.start()
    assert isinstance(action, Wait)
    assert action.timeout_s == 30.0
    ready = dispatch.wait(asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert not ready.done()
    router.close("filler")
    await ready
    assert isinstance(dispatch.admitted(), Call)
    dispatch.client_gone()
    router.check()


async def test_wait_ends_with_its_time(make_router: MakeRouter) -> None:
    # Real time: what is tested is the timer of the event loop.
    router = make_router(clock=None)
    router.turn("filler", prompt_tokens=16 * 80).__enter__().finish(output_tokens=0)
    dispatch = Dispatcher(router, queue_timeout_s=0.05).open(CHAT, headers(), body())
    action: object = dispatch.start()
    while isinstance(action, Wait):
        await dispatch.wait(asyncio.get_running_loop())
        action = dispatch.admitted()
    assert isinstance(action, Reply)
    assert action.status == 429
    assert router.snapshot().waiting == 0


async def test_abandoned_wait_leaves_the_line(make_router: MakeRouter) -> None:
    router = make_router()
    router.turn("filler", prompt_tokens=16 * 80).__enter__().finish(output_tokens=0)
    dispatch = Dispatcher(router).open(CHAT, headers(), body())
    dispatch.start()
    ready = dispatch.wait(asyncio.get_running_loop())
    assert router.snapshot().waiting == 1
    ready.cancel()
    dispatch.client_gone()
    assert router.snapshot().waiting == 0
    router.check()


def test_conversations_are_found_by_their_callers(make_router: MakeRouter) -> None:
    router = make_router()
    dispatcher = Dispatcher(router)
    for key in (None, b"sk-a", b"sk-b"):
        dispatch = dispatcher.open(CHAT, headers(key=key), body())
        stream_to(dispatch)
        dispatch.head(200, EVENT_STREAM)
        dispatch.heard(b"data: [DONE]\n\n")
        dispatch.end()
    views = [dispatcher.conversation("task-42", headers(key=key)) for key in (None, b"sk-a", b"sk-b")]
    assert len({view.key for view in views if view is not None}) == 3, "one for each credential"
    assert dispatcher.conversation("task-42", headers(key=b"sk-c")) is None
    known = views[1]
    assert known is not None
    found = dispatcher.conversation(known.key, headers(key=b"sk-a"))
    assert found is not None
    assert found.key == known.key, "by its key too"
    assert dispatcher.close_conversation("task-42", headers(key=b"sk-a")) is True
    assert dispatcher.close_conversation("task-42", headers(key=b"sk-a")) is False
    assert dispatcher.conversation("task-42", headers(key=b"sk-b")) is not None


def test_models_that_nobody_serves_are_refused(make_router: MakeRouter) -> None:
    dispatcher = Dispatcher(make_router())
    dispatcher.set_models(["other"])
    action = dispatcher.open(CHAT, headers(), body()).start()
    assert isinstance(action, Reply)
    assert action.status == 404
    assert dispatcher.counters["requests_refused"] == 1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"connector": "telepathy"}, "connector"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"max_depth": -1}, "max_depth"),
        ({"retries": -1}, "retries"),
        ({"lease_s": 0.0}, "lease_s"),
        ({"lease_s": float("nan")}, "lease_s"),
        ({"prefill_timeout_s": 0.0}, "prefill_timeout_s"),
        ({"conversation_headers": ["X-Id"]}, "conversation_headers"),
        ({"worker_key": "a\nb"}, "worker_key"),
    ],
)
def test_bad_option_is_named(make_router: MakeRouter, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Dispatcher(make_router(), **options)
    assert refused.value.key == key


def test_headers_may_be_lists_and_must_be_bytes(make_router: MakeRouter) -> None:
    router = make_router()
    pairs: Any = [[b"x-conversation-id", b"task-42"]]
    dispatch = Dispatcher(router).open(CHAT, pairs, body())
    dispatch.start()
    assert router.conversation("task-42") is not None
    text: Any = [("x-conversation-id", "task-42")]
    with pytest.raises(TypeError):
        Dispatcher(router).open(CHAT, text, body())


def test_large_bodies_let_other_threads_run(make_router: MakeRouter) -> None:
    """Both threads read 4 MB bodies; each answer is right, and none waits for the other for ever."""
    router = make_router(kv_blocks=16_000_000, prefill_backlog_tokens=1_000_000_000)
    dispatcher = Dispatcher(router)
    kinds: list[str] = []

    def work(thread: int) -> None:
        for n in range(5):
            dispatch = dispatcher.open(CHAT, headers(f"task-{thread}-{n}"), body("x" * 4_000_000))
            kinds.append(type(dispatch.start()).__name__)
            dispatch.client_gone()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert kinds == ["Call"] * 10
    assert booked(router) == 0
    router.check()


def test_overlapping_calls_are_refused(make_router: MakeRouter) -> None:
    """One request is driven by one thread; a second caller is told so, whatever the first is doing."""
    router = make_router(kv_blocks=16_000_000)
    dispatcher = Dispatcher(router)
    overlapped = 0
    for n in range(200):
        dispatch = dispatcher.open(CHAT, headers(f"task-{n}"), body("x" * 2_000_000))
        starter = threading.Thread(target=dispatch.start)
        starter.start()
        while starter.is_alive():
            try:
                _ = dispatch.over
            except RuntimeError:
                overlapped += 1
        starter.join(timeout=20)
        if overlapped:
            break
    assert overlapped > 0
    router.check()


def test_time_of_the_line_is_the_routers(make_router: MakeRouter, clock: ManualClock) -> None:
    router = make_router()
    router.turn("filler", prompt_tokens=16 * 80).__enter__().finish(output_tokens=0)
    dispatch = Dispatcher(router).open(CHAT, headers(), body())
    assert isinstance(dispatch.start(), Wait)
    clock.advance(31)
    action = dispatch.admitted()
    assert isinstance(action, Reply)
    assert action.status == 429
