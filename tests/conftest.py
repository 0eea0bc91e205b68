"""What holds for every test."""

from __future__ import annotations

import signal

import hypothesis
import pytest

# What is tried is the same each time, so that a failure is a change's. `--hypothesis-profile default` looks for new cases.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")


def pytest_configure() -> None:
    """Let SIGINT and SIGHUP mean what they mean at a terminal.

    A shell starts background jobs with SIGINT ignored, `nohup` its command with SIGHUP, and what is ignored stays ignored in
    every process that a test starts. What is handled does not: then it ends those, and the tests themselves go on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes the tests that may take longest come first, so that none is left alone with one at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=limit_s, reverse=True)


def limit_s(item: pytest.Item) -> float:
    """How long a test says that it may take; 0 where it says nothing."""
    mark = item.get_closest_marker("timeout")
    return 0.0 if mark is None else float(mark.args[0])
