from __future__ import annotations

import logging

import pytest

from conserve.proxy.decisions import say


def test_what_a_client_sends_cannot_write_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="conserve")
    for evil in ("a\x85\x9b31mb".encode(), b"a\x85\x9bb", "a\u2028b\u202eb".encode(), b"r" * 60_000):
        headers = [(b"x-conserve-route", b"first"), (b"x-request-id", evil)]
        say("/v1/chat/completions", 200, headers, None)
        say("/v1/chat/completions", 404, headers, b"{}")
    assert len(caplog.records) == 8
    for record in caplog.records:
        text = record.getMessage()
        assert text.isprintable(), "no line ends, no terminal's commands"
        assert len(text) < 1000
