"""What is asked of a router: credentials go to it alone, and into no message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from conserve.cli._ask import UnreachableError, ask


@contextmanager
def server(location: str | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """A server that answers `{}` or redirects; its URL and the credentials that it was given."""
    given: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(self.headers["authorization"])
            self.send_response(200 if location is None else 302)
            if location is not None:
                self.send_header("location", location)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", given
        finally:
            http.shutdown()
            thread.join()


def test_credentials_do_not_follow_a_redirect() -> None:
    with server() as (other, given), server(other + "/v1/fleet") as (first, asked):
        with pytest.raises(UnreachableError, match="answered 302"):
            ask(first, "/v1/fleet", {"authorization": "Bearer sk-1"})
        assert (asked, given) == (["Bearer sk-1"], [])
        assert ask(other, "/v1/fleet", {"authorization": "Bearer sk-1"}).json == {}
        assert given == ["Bearer sk-1"]


@pytest.mark.parametrize("value", ["Bearer sk-secret\n", "Bearer sk-secret\x00", "Bearer sk-secret\u20ac"])
def test_a_credential_that_no_header_may_hold_is_not_shown(value: str) -> None:
    with pytest.raises(UnreachableError, match="authorization has a line break") as caught:
        ask("http://127.0.0.1:1", "/v1/fleet", {"authorization": value})
    assert "sk-secret" not in str(caught.value)


def test_a_password_in_the_url_is_not_shown() -> None:
    for url in ("http://user:hunter2@127.0.0.1:1", "user:hunter2@127.0.0.1:1"):
        with pytest.raises(UnreachableError, match="no password") as caught:
            ask(url, "/v1/fleet", {})
        assert "hunter2" not in str(caught.value)
