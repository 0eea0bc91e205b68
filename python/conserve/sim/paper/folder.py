"""The folder of a run: one run writes to it at a time, and a small run never over a whole one or the other way round."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING

from conserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["holding"]


@contextlib.contextmanager
def holding(folder: Path, *, small: bool) -> Iterator[None]:
    """The folder is this run's until the block ends.

    Raises:
        ConfigError: another run writes to it, a report of the other size lies there, or nothing can be kept there.
    """
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Left where it is: whoever removed it could take it from a run that has just opened it.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as cause:
        raise ConfigError(f"cannot keep finished runs in {folder}: {cause.strerror}") from cause
    try:
        _take(lock, folder)
        _refuse_other_size(folder, small=small)
        yield
    finally:
        os.close(lock)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        who = f", process {holder}," if holder else ""
        raise ConfigError(
            f"another run{who} writes to {folder}; wait for it or choose another folder with --out"
        ) from None
    os.truncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)


def _refuse_other_size(folder: Path, *, small: bool) -> None:
    path = folder / "paper.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        found = bool(told["small"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if found != small:
        kinds = {True: "a small run", False: "a whole run"}
        raise ConfigError(f"{path} is of {kinds[found]}; choose another folder with --out for {kinds[small]}")
