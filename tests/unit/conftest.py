"""A small fleet with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conserve import Decoder, ManualClock, Prefiller, Router


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_router(clock: ManualClock) -> Callable[..., Router]:
    """One prefiller `p0` and decoders `d0`, `d1`, ... of `kv_blocks` blocks of 16 tokens each.

    Nothing is taken from idle conversations, so that a turn that ended fills a decoder.
    """

    def make(*, decoders: int = 1, kv_blocks: int = 100, prefillers: int = 1, **options: Any) -> Router:
        options.setdefault("clock", clock)
        options.setdefault("evict_idle", False)
        options.setdefault("tail_waits", True)
        return Router(
            [Prefiller(f"http://p{i}:8000", name=f"p{i}") for i in range(prefillers)],
            [Decoder(f"http://d{i}:8000", kv_blocks=kv_blocks, name=f"d{i}") for i in range(decoders)],
            **options,
        )

    return make
