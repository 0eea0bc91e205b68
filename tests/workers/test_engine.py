"""The engine in this process: shortage, aborts, leases and what is given back after each."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from conserve_workers.tiny.engine import Engine
from conserve_workers.tiny.model.load import Loaded, load
from conserve_workers.tiny.options import Options
from conserve_workers.tiny.request import Output, RemotePrefill, Request, Sampling

GREEDY = Sampling(temperature=0, max_tokens=8)
WAIT_S = 30


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load("random", device="cpu", max_model_len=2048)


class Bench:
    """An engine with a queue of what it says."""

    def __init__(self, loaded: Loaded, options: Options) -> None:
        self.heard: queue.Queue[Output] = queue.Queue()
        self.engine = Engine(loaded, options, self._hear)
        self.tokenizer = loaded.tokenizer

    def _hear(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.heard.put(output)

    def submit(self, name: str, text: str, sampling: Sampling = GREEDY, **fields: object) -> None:
        prompt = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        self.engine.submit(replace(Request(name, prompt, sampling), **fields))  # type: ignore[arg-type]

    def finish(self, *names: str) -> dict[str, tuple[str, Output]]:
        """Wait for the ends of some requests; each one's text and last output."""
        texts = dict.fromkeys(names, "")
        ends: dict[str, tuple[str, Output]] = {}
        while len(ends) < len(names):
            output = self.heard.get(timeout=WAIT_S)
            if output.request_id in texts:
                texts[output.request_id] += output.text
                if output.finish_reason is not None:
                    ends[output.request_id] = (texts[output.request_id], output)
        return ends

    def text(self, text: str, sampling: Sampling = GREEDY, **fields: object) -> str:
        self.submit("one", text, sampling, **fields)
        return self.finish("one")["one"][0]

    def settle(self) -> None:
        assert self.engine.wait_idle(timeout_s=WAIT_S)


@pytest.fixture
def bench(loaded: Loaded) -> Iterator[Bench]:
    bench = Bench(loaded, Options(model="random", kv_blocks=256))
    bench.engine.start()
    yield bench
    bench.engine.stop()


def start(loaded: Loaded, **options: object) -> Bench:
    bench = Bench(loaded, replace(Options(model="random"), **options))  # type: ignore[arg-type]
    bench.engine.start()
    return bench


def test_same_prompt_same_text_whatever_is_resident(bench: Bench) -> None:
    first = bench.text("the same prompt " * 9)
    again = bench.text("the same prompt " * 9)
    assert first == again
    counters = bench.engine.counters
    assert counters.prompt_tokens_resident == 143, "all 144 tokens but the last"
    assert counters.prompt_tokens_computed == 144 + 1


def test_shortage_changes_no_text(loaded: Loaded, bench: Bench) -> None:
    prompts = {f"r{number}": f"request number {number} " * (4 + number) for number in range(6)}
    long = replace(GREEDY, max_tokens=60)
    expected = {name: bench.text(prompt, long) for name, prompt in prompts.items()}
    tight = start(loaded, kv_blocks=26)  # 400 tokens of room; the six need 1,500
    for name, prompt in prompts.items():
        tight.submit(name, prompt, long)
    ends = tight.finish(*prompts)
    tight.settle()
    tight.engine.stop()
    assert {name: text for name, (text, _last) in ends.items()} == expected
    assert tight.engine.counters.preemptions > 0
    assert tight.engine.counters.evictions > 0
    assert tight.engine.pool.used == 0


def test_abort_gives_blocks_back_in_every_state(loaded: Loaded) -> None:
    bench = start(loaded, kv_blocks=64, max_num_seqs=1)
    endless = replace(GREEDY, max_tokens=900)
    bench.submit("running", "abc " * 20, endless)
    bench.submit("waiting", "def " * 20, endless)
    assert bench.heard.get(timeout=WAIT_S).request_id == "running"
    bench.engine.abort("waiting")
    bench.engine.abort("running")
    bench.engine.abort("unknown")
    bench.settle()
    assert bench.engine.pool.used == 0
    assert bench.engine.counters.finished["abort"] == 2
    bench.engine.stop()


def test_abort_interrupts_a_chunk_and_disturbs_nobody(loaded: Loaded, bench: Bench) -> None:
    expected = bench.text("a neighbour ", replace(GREEDY, max_tokens=40))
    busy = start(loaded, chunk_tokens=2048)
    aborted = threading.Event()
    forward, layers = loaded.model.forward, []

    def watched(*arguments: Any, unwanted: Callable[[], bool], **options: Any) -> torch.Tensor:
        def ask() -> bool:
            layers.append(len(arguments[0]))
            if len(arguments[0]) > 1000 and not aborted.is_set():
                busy.engine.abort("long")
                aborted.set()
            return unwanted()

        return forward(*arguments, unwanted=ask, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded.model, "forward", watched)
        busy.submit("short", "a neighbour ", replace(GREEDY, max_tokens=40))
        busy.submit("long", "x" * 1500)
        text, _last = busy.finish("short")["short"]
        busy.settle()
    assert text == expected
    assert sum(1 for tokens in layers if tokens > 1000) == 1, "given up before its second layer"
    assert busy.engine.pool.used == 0
    busy.engine.stop()


def test_abort_during_a_fetch_gives_blocks_back_when_it_has_ended(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = RemotePrefill("e", "r", "127.0.0.1", silent.getsockname()[1], 40, 3)
        bench.submit("fetching", "x" * 40, remote=remote)
        peer, _address = silent.accept()
        with peer:
            bench.engine.abort("fetching")
            bench.settle()
            assert bench.engine.pool.used == 0
            assert bench.engine.counters.handoffs_failed == 0, "the client left; nobody failed"


def test_failed_handoff_says_why_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    bench.submit("wanting", "x" * 40, remote=RemotePrefill("e", "r", "127.0.0.1", port, 40, 3))
    _text, last = bench.finish("wanting")["wanting"]
    assert last.error is not None
    assert f"handoff of request wanting failed: {last.error}" in caplog.messages


def test_handoff_that_is_broken_off_says_why_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", bench.engine.handoff_port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        assert not stranger.recv(1), "the engine hangs up"
    for thread in threading.enumerate():
        if thread.name == "handoff-send":
            thread.join(WAIT_S)
    assert "handoff broken off: the peer does not speak the handoff protocol" in caplog.messages


def test_lease_ends_by_itself(loaded: Loaded) -> None:
    bench = start(loaded, lease_s=0.05)
    bench.submit("kept", "hand me over " * 5, replace(GREEDY, max_tokens=1), hand_off=True)
    _text, last = bench.finish("kept")["kept"]
    assert last.kv_transfer_params is not None
    assert len(last.kv_transfer_params["remote_block_ids"]) == 5, "65 tokens in blocks of 16"
    bench.settle()  # waits for the lease too
    assert bench.engine.counters.handoffs_expired == 1
    assert bench.engine.pool.used == 0
    bench.engine.stop()


def test_kept_blocks_cover_the_prompt_only(bench: Bench) -> None:
    bench.submit("kept", "x" * 16, replace(GREEDY, max_tokens=30), hand_off=True)
    _text, last = bench.finish("kept")["kept"]
    assert last.kv_transfer_params is not None
    assert last.kv_transfer_params["remote_num_tokens"] == 16
    assert bench.engine.pool.used == 1


def test_minimum_length_keeps_the_end_away(bench: Bench) -> None:
    text = bench.text("count ", replace(GREEDY, max_tokens=30))
    stop = text[4]
    assert bench.text("count ", replace(GREEDY, max_tokens=30, stop=(stop,))) == text[: text.index(stop)]
    late = bench.text("count ", replace(GREEDY, max_tokens=30, stop=(stop,), min_tokens=20))
    assert late == text[:19] + text[19:].split(stop)[0]


def test_answer_ends_where_the_context_does(loaded: Loaded) -> None:
    bench = start(loaded, kv_blocks=5)
    assert bench.engine.max_model_len == 64, "4 blocks of 16"
    bench.submit("long", "y" * 60, replace(GREEDY, max_tokens=1000))
    _text, last = bench.finish("long")["long"]
    assert (last.finish_reason, last.output_tokens) == ("length", 4)
    bench.engine.stop()


def test_stop_answers_everyone(loaded: Loaded) -> None:
    bench = start(loaded, max_num_seqs=1)
    bench.submit("running", "z", replace(GREEDY, max_tokens=900))
    bench.submit("waiting", "z", replace(GREEDY, max_tokens=900))
    bench.heard.get(timeout=WAIT_S)
    bench.engine.stop()
    bench.submit("late", "z")
    ends = bench.finish("running", "waiting", "late")
    assert {last.finish_reason for _text, last in ends.values()} == {"abort"}
    assert not bench.engine.alive


def test_dead_engine_says_so(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = start(loaded)

    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(type(loaded.model), "forward", fail)
    bench.submit("one", "z")
    _text, last = bench.finish("one")["one"]
    assert last.finish_reason == "error"
    assert "out of luck" in (last.error or "")
    assert not bench.engine.alive
    bench.engine.stop()


def test_many_threads_may_submit(bench: Bench) -> None:
    names = [f"t{number}" for number in range(24)]
    threads = [threading.Thread(target=bench.submit, args=(name, name * 10)) for name in names]
    for thread in threads:
        thread.start()
    ends = bench.finish(*names)
    assert len(ends) == 24
    bench.settle()
    assert bench.engine.pool.used == 0
