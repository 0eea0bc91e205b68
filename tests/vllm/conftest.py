"""Real vLLM servers for the length of the run, and a router in front of them; `make vllm-test`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.door import Door, door_over
from tests.vllm.servers import PYTHON, SHARED, Forge, shared_forge, the_forge
from tests.vllm.small import Small, start_small


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without vLLM these tests say how to get it; with it they may take long on a small machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(
                pytest.mark.skipif(
                    not PYTHON, reason="needs vLLM in an environment of its own: make vllm-test"
                )
            )
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def empty_forge(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """For those who start servers of their own only."""
    return the_forge(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """`p0`, `d0`, `d1` and the instance `plain` that does everything itself."""
    return shared_forge(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def shared_small(forge: Forge) -> Small:
    """One decoder with 63 usable blocks for all tests that need one."""
    return start_small(forge, "small")


@pytest.fixture
def small(shared_small: Small) -> Small:
    """The same with an empty cache."""
    shared_small.forget()
    return shared_small


@pytest.fixture
def mended(forge: Forge) -> Iterator[None]:
    """What a test kills is started again for the next one; ask for it before `door`, which then ends first."""
    yield
    dead = [name for name in SHARED if not forge.lives(name)]
    if dead:
        forge.restart(*dead)


@pytest.fixture
def door(forge: Forge, tmp_path: Path) -> Iterator[Door]:
    """A fresh router over the prefiller and the two decoders."""
    with door_over(forge, tmp_path / "door.log") as made:
        yield made
