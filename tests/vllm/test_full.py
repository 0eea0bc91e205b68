"""A decoder with little memory, where idle conversations keep what they have: who does not fit waits outside of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.vllm.door import Door, door_over
from tests.vllm.servers import Forge, alone, completion, token_ids
from tests.vllm.small import Small

# Newcomers may fill 80 % of 63 blocks of 32 tokens.
LARGE, SMALL = 1100, 600


@pytest.fixture
def door(forge: Forge, small: Small, tmp_path: Path) -> Iterator[Door]:
    with door_over(
        forge,
        tmp_path / "door.log",
        decoders=[small.name],
        queue_timeout_s=2,
        evict_idle=False,
        tail_waits=True,
    ) as made:
        yield made


def test_newcomer_to_a_full_decoder_is_told_when_to_come_back_and_fits_later(
    forge: Forge, small: Small, door: Door
) -> None:
    prompt = token_ids(301, LARGE)
    first = door.turn(completion(prompt), "large")
    assert first.token_ids == alone(forge, prompt)
    newcomer = token_ids(302, SMALL)
    refused = door.turn(completion(newcomer), "small")
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    door.assert_balanced()
    before = small.computed()
    prompt = [*prompt, *first.token_ids, *token_ids(303, 20)]
    second = door.turn(completion(prompt), "large")
    assert second.token_ids == alone(forge, prompt)
    assert small.computed() - before <= len(prompt) - LARGE + 32, (
        "the idle conversation lost nothing to the newcomer"
    )
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(door.turn, completion(newcomer), "small")
        door.await_in_flight(1)
        assert door.worker.send("DELETE", "/v1/conversations/large")[0] in (200, 204)
        assert waits.result().token_ids == alone(forge, newcomer), "let in when the other ended"
    assert forge[small.name].metrics()["vllm:num_preemptions_total"] == 0
    door.assert_balanced()
