"""Real engines that hang: they accept connections and say nothing. Time limits are short here, by the router's settings."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.vllm.door import Door, door_over
from tests.vllm.servers import Forge, alone, completion, token_ids

pytestmark = pytest.mark.usefixtures("mended")
# Enough for two busy cores, short enough to wait for.
PATIENCE_S = 4.0
LEASE_S = 3.0


@pytest.fixture
def door(forge: Forge, tmp_path: Path) -> Iterator[Door]:
    with door_over(
        forge,
        tmp_path / "door.log",
        prefill_timeout_s=PATIENCE_S,
        first_byte_timeout_s=PATIENCE_S,
        answer_timeout_s=PATIENCE_S,
        stream_idle_timeout_s=PATIENCE_S,
    ) as made:
        yield made


def test_prefiller_that_hangs_is_done_without(forge: Forge, door: Door) -> None:
    prompt = token_ids(101, 300)
    with forge.stopped("p0"):
        turn = door.turn(completion(prompt), "task-101")
    assert turn.token_ids == alone(forge, prompt)
    assert "x-conserve-prefiller" not in turn.headers
    door.assert_balanced()
    door.until({"p0", "d0", "d1"})
    prompt = token_ids(102, 300)
    again = door.turn(completion(prompt), "task-102")
    assert again.token_ids == alone(forge, prompt)
    assert again.headers["x-conserve-prefiller"] == "p0", "it is trusted again"


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_decoder_that_hangs_is_an_error_and_keeps_its_conversation(
    forge: Forge, door: Door, *, streams: bool
) -> None:
    conversation = f"task-111-{streams}"
    prompt = token_ids(111 + streams, 300)
    first = door.turn(completion(prompt), conversation)
    prompt = [*prompt, *first.token_ids, *token_ids(113, 40)]
    with forge.stopped(first.decoder):
        told = (door.stream if streams else door.turn)(completion(prompt), conversation)
    assert told.status == 504, "nothing of a stream was shown, so it is a plain error"
    door.assert_balanced()
    door.until({"p0", "d0", "d1"})
    second = door.turn(completion(prompt), conversation)
    assert second.token_ids == alone(forge, prompt)
    assert second.decoder == first.decoder, "its KV is there"
    assert "x-conserve-prefiller" not in second.headers
    door.assert_balanced()


def test_decoder_that_hangs_in_mid_stream_ends_the_stream_with_an_error(forge: Forge, door: Door) -> None:
    prompt = token_ids(121, 300)
    with door.open(completion(prompt, max_tokens=3000, stream=True), "task-121") as response:
        decoder = response.headers["x-conserve-decoder"]
        response.readline()
        with forge.stopped(decoder):
            rest = response.read().decode()
    assert rest.count('"error"') == 1
    assert "worker_timeout" in rest
    forge[decoder].await_metric("vllm:num_requests_running", 0)
    forge[decoder].await_metric("vllm:kv_cache_usage_perc", 0)
    door.assert_balanced()
    prompt = [*prompt, *token_ids(122, 40)]
    door.until({"p0", "d0", "d1"})
    assert door.turn(completion(prompt), "task-121").token_ids == alone(forge, prompt)


def test_handoff_older_than_the_lease_is_never_sent(forge: Forge, tmp_path: Path) -> None:
    # A decoder that takes no connection keeps the router waiting with parameters in its hand.
    prompt = token_ids(131, 300)
    with (
        door_over(
            forge, tmp_path / "lease.log", decoders=["d0"], lease_s=LEASE_S, connect_timeout_s=2, retries=4
        ) as door,
        ThreadPoolExecutor(1) as pool,
        forge.stopped("d0"),
        ExitStack() as flood,
    ):
        fill_backlog(forge["d0"].url, flood)
        turn = pool.submit(door.stream, completion(prompt), "task-131")
        door.await_counter("conserve_dispatch_total{handoffs_expired}", 1)
        flood.close()
        forge.resume("d0")
        assert turn.result().token_ids == alone(forge, prompt)
        assert door.counter("conserve_orphaned_prefills_total") >= 1
        door.assert_balanced()


def fill_backlog(url: str, held: ExitStack) -> None:
    """Connect until a stopped server's kernel takes no more."""
    address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
    while True:
        each = held.enter_context(socket.socket())
        each.settimeout(0.3)
        try:
            each.connect(address)
        except TimeoutError:
            return
