"""GPUs that the test sets, behind the real nvidia-ml-py and a stand-in for the library below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import nvml


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], nvml.StandIn]:
    nvml.load()

    def made(count: int) -> nvml.StandIn:
        stand_in = nvml.StandIn(tmp_path / "gpus", gpus=count)
        monkeypatch.setenv(nvml.VARIABLE, str(stand_in.path))
        return stand_in

    return made
