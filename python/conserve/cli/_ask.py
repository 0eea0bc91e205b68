"""One question to a router over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Container, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final

__all__ = ["Answer", "UnreachableError", "ask", "base_of"]

_TIMEOUT_S: Final = 5.0


class UnreachableError(Exception):
    """The router could not be asked: which one, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What it answered; headers have lower-case names."""

    base: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The object in the body. Raises UnreachableError."""
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UnreachableError(f"{self.base} answered something else than a ConServe router does")
        return found


class _Stay(urllib.request.HTTPRedirectHandler):
    """Credentials are for the server that was named, and no other."""

    def redirect_request(self, *_args: object) -> None:
        """None: a redirect is an answer like any other."""


_OPENER: Final = urllib.request.build_opener(_Stay)


def base_of(url: str) -> str:
    """The router's own URL, of it or of the API that agents are given."""
    return url.rstrip("/").removesuffix("/v1")


def ask(base: str, path: str, headers: Mapping[str, str], *, allowed: Container[int] = ()) -> Answer:
    """GET `path`; a status that is neither 200 nor `allowed` is no answer. Raises UnreachableError."""
    if "@" in base:
        raise UnreachableError("the URL of a router has no user name and no password: write http://host:port")
    if not base.startswith(("http://", "https://")):
        raise UnreachableError(f"{base!r} is no URL of a router: write http://host:port")
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise UnreachableError(
                f"the value for the header {name} has a line break in it, or another character that no header may have: "
                "look at the environment variable that it is from"
            )
    try:
        request = urllib.request.Request(base + path, headers=dict(headers))  # noqa: S310 - checked above
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            return Answer(base, answer.status, _lower(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        if error.code in allowed:
            return Answer(base, error.code, _lower(error.headers), error.read())
        if error.code == 401:
            raise UnreachableError(f"{base} asks for its control key: set CONSERVE_CONTROL_KEY") from error
        raise UnreachableError(f"{base}{path} answered {error.code}: is it a ConServe router?") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        why = getattr(why, "strerror", None) or why
        raise UnreachableError(
            f"{base} cannot be reached ({why}): is `conserve serve` running there?"
        ) from error


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
