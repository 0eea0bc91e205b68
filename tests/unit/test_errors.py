"""The exception tree: codes, statuses, and that errors survive copies and processes."""

from __future__ import annotations

import copy
import pickle

import pytest

import conserve
from conserve import (
    ConfigError,
    ConserveError,
    Draining,
    NoWorkers,
    Overloaded,
    PromptTooLong,
    Rejected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    WorkerUnavailable,
)

STATUS: dict[type[ConserveError], int] = {
    Overloaded: 429,
    PromptTooLong: 400,
    Draining: 503,
    NoWorkers: 503,
    WorkerUnavailable: 503,
    WorkerTimeout: 504,
    WorkerProtocolError: 502,
}


def test_each_error_has_one_status_and_its_own_code() -> None:
    assert {kind: kind.status for kind in STATUS} == STATUS
    codes = [kind.code for kind in STATUS]
    assert len(set(codes)) == len(codes)


def test_tree() -> None:
    assert issubclass(ConfigError, ConserveError)
    assert issubclass(ConfigError, ValueError)
    assert all(issubclass(kind, Rejected) for kind in (Overloaded, PromptTooLong, Draining, NoWorkers))
    assert all(
        issubclass(kind, WorkerError) for kind in (WorkerUnavailable, WorkerTimeout, WorkerProtocolError)
    )
    assert issubclass(Rejected, ConserveError)
    assert issubclass(WorkerError, ConserveError)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("low_watermark is 2", key="low_watermark", accepted="0 < x <= 1"),
        Overloaded("no room", retry_after_s=4.0),
        PromptTooLong("too long", tokens=10, limit=5),
        WorkerTimeout("d0 is silent", worker="d0", phase="prefill", retryable=False),
        Rejected("no", code="special", status=418),
    ],
)
def test_errors_survive_pickle_and_copy(error: ConserveError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (str(twin), vars(twin), twin.code, twin.status) == (
            str(error),
            vars(error),
            error.code,
            error.status,
        )


def test_every_exported_error_is_documented() -> None:
    for name in conserve.__all__:
        value = getattr(conserve, name)
        if isinstance(value, type) and issubclass(value, ConserveError):
            assert name in (conserve.errors.__doc__ or ""), name
