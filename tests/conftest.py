"""What holds for every test."""

from __future__ import annotations

import signal

import pytest


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
    """With several processes the long tests come first, so that none of them is left alone at the end with one."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
