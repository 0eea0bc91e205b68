"""The engines that keep the worker contract (`workers/README.md`); each case here runs against each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import pytest

from tests.vllm import servers
from tests.workers.harness import Worker, mock, tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`not_for(engine, reason=...)`: an engine that bends this part of the contract, and how."""
    for item in items:
        engine = (
            item.callspec.params.get("cluster")
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else None
        )
        for mark in item.iter_markers("not_for"):
            if mark.args == (engine,):
                item.add_marker(pytest.mark.skip(reason=f"{engine}: {mark.kwargs['reason']}"))


@dataclass(frozen=True, slots=True)
class Engine:
    """How to start one engine's workers, and what it can do."""

    prefiller: Callable[[], AbstractContextManager[Worker]]
    decoder: Callable[[], AbstractContextManager[Worker]]
    plain: Callable[[], AbstractContextManager[Worker]]


ENGINES = {
    "mock": Engine(
        prefiller=lambda: mock("--role", "prefiller", "--max-model-len", "4096"),
        decoder=lambda: mock("--role", "decoder", "--max-model-len", "4096"),
        plain=lambda: mock("--max-model-len", "4096", "--max-body-bytes", "1000000"),
    ),
    "tiny": Engine(
        prefiller=lambda: tiny("--role", "prefiller", "--max-model-len", "4096", "--drain-s", "1"),
        decoder=lambda: tiny("--role", "decoder", "--max-model-len", "4096", "--drain-s", "1"),
        plain=lambda: tiny("--max-model-len", "4096", "--max-body-bytes", "1000000"),
    ),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    engine: str
    prefiller: Worker
    decoder: Worker
    plain: Worker


@pytest.fixture(scope="session", params=[*sorted(ENGINES), *(["vllm"] if servers.PYTHON else [])])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if request.param == "vllm":
        # Started together and shared with `tests/vllm`: `make vllm-test`.
        forge = servers.shared_forge(tmp_path_factory.mktemp("vllm"))
        yield Cluster("vllm", forge["p0"], forge["d0"], forge["plain"])
        return
    engine = ENGINES[request.param]
    with ExitStack() as stack:
        yield Cluster(
            request.param,
            *(stack.enter_context(start()) for start in (engine.prefiller, engine.decoder, engine.plain)),
        )


@pytest.fixture
def engine(cluster: Cluster) -> str:
    """The name of the engine at hand."""
    return cluster.engine


@pytest.fixture
def worker(cluster: Cluster) -> Worker:
    """The instance that does everything itself."""
    return cluster.plain
