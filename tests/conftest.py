"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let SIGINT mean what it means at a terminal.

    A shell starts background jobs with SIGINT ignored, and what is ignored stays ignored in every process that a test starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
