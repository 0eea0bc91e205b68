"""What can go wrong, as types; each message says what happened, to which object, and what to do."""

from __future__ import annotations


class TinyError(Exception):
    """Base of this engine's errors."""


class StartError(TinyError):
    """The engine cannot start: a wrong option, a missing package, a model that it cannot compute."""


class RequestError(TinyError):
    """The client's request is refused, as HTTP status and OpenAI error object."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class HandoffError(TinyError):
    """The KV blocks of a prompt could not be fetched from the worker that computed them."""
