"""One prefiller, one decoder and one plain instance of the random model, shared by the tests that do not harm them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.harness import Worker, tiny


@pytest.fixture(scope="session")
def prefiller() -> Iterator[Worker]:
    with tiny("--role", "prefiller") as worker:
        yield worker


@pytest.fixture(scope="session")
def decoder() -> Iterator[Worker]:
    with tiny("--role", "decoder") as worker:
        yield worker


@pytest.fixture(scope="session")
def plain() -> Iterator[Worker]:
    with tiny() as worker:
        yield worker
