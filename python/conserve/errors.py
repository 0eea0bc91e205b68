"""The exceptions of ConServe: one tree, one stable code and one HTTP status for each.

The core decides which error it is and what its code and status are; the extension raises these classes.

    ConserveError
    ├── ConfigError (also a ValueError)
    ├── Rejected
    │   ├── Overloaded      429
    │   ├── PromptTooLong   400
    │   ├── Draining        503
    │   └── NoWorkers       503
    └── WorkerError
        ├── WorkerUnavailable     503
        ├── WorkerTimeout         504
        └── WorkerProtocolError   502
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "ConfigError",
    "ConserveError",
    "Draining",
    "NoWorkers",
    "Overloaded",
    "PromptTooLong",
    "Rejected",
    "WorkerError",
    "WorkerProtocolError",
    "WorkerTimeout",
    "WorkerUnavailable",
]


class ConserveError(Exception):
    """Any error that ConServe raises on purpose.

    `code` is a stable slug for programs, `status` the HTTP status a door answers with, `str(error)` the message
    for people: what happened, to which object, what to do.
    """

    code: str = "internal_error"
    status: int = 500

    def __init__(self, message: str, *, code: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors of the subclasses take keywords that `args` does not hold; errors cross processes all the same.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class ConfigError(ConserveError, ValueError):
    """An option is missing, contradictory or out of range. Nothing was built or changed.

    `key` names the option, `accepted` says which values are taken (both empty where the message says it all).
    """

    code = "config_error"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        accepted: str = "",
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.key = key
        self.accepted = accepted


class Rejected(ConserveError):  # noqa: N818 - the name says what happened
    """The router said no to a turn. Nothing stays booked for it."""

    code = "rejected"
    status = 503


class Overloaded(Rejected):
    """There is no room now: the fleet is above its watermarks, the line is full, or the wait in line was too long.

    `retry_after_s` is computed from the rate at which turns were admitted lately, 1 to 60 s.
    """

    code = "overloaded"
    status = 429

    def __init__(
        self, message: str, *, retry_after_s: float = 1.0, code: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.retry_after_s = retry_after_s


class PromptTooLong(Rejected):
    """The prompt fits no decoder, however long it waits: `tokens` is its size, `limit` the largest that fits."""

    code = "context_length_exceeded"
    status = 400

    def __init__(
        self,
        message: str,
        *,
        tokens: int = 0,
        limit: int = 0,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.tokens = tokens
        self.limit = limit


class Draining(Rejected):
    """Every decoder that could take the turn is being drained. Try another router, or later."""

    code = "draining"
    status = 503


class NoWorkers(Rejected):
    """No decoder is ready: none has joined, all were lost, or none has told its KV capacity. Worth trying again later."""

    code = "no_workers"
    status = 503


class WorkerError(ConserveError):
    """A worker failed a turn.

    `worker` is its name, `phase` the part of the turn it was at, `retryable` whether sending the same turn again may help.
    """

    code = "worker_error"
    status = 502

    def __init__(
        self,
        message: str,
        *,
        worker: str = "",
        phase: Literal["prefill", "decode"] = "decode",
        retryable: bool = True,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.worker = worker
        self.phase: Literal["prefill", "decode"] = phase
        self.retryable = retryable


class WorkerUnavailable(WorkerError):  # noqa: N818 - the name says what happened
    """The worker could not be reached, or its connection broke."""

    code = "worker_unavailable"
    status = 503


class WorkerTimeout(WorkerError):  # noqa: N818 - the name says what happened
    """The worker did not answer, or did not go on, in the time allowed."""

    code = "worker_timeout"
    status = 504


class WorkerProtocolError(WorkerError):
    """The worker answered something that is not the protocol it speaks."""

    code = "worker_protocol_error"
    status = 502


def _rebuild(kind: type[ConserveError], args: tuple[object, ...], fields: dict[str, object]) -> ConserveError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error
