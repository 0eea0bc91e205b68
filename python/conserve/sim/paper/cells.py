"""Runs as cells: each computed once, on all cores, written down when it is done.

A cell is a mapping that says all of a run; its key is a hash of that and of the code that runs it. What the store holds
under the key is not run again, so an interrupted sweep goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import signal
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Cell", "Store", "Values", "code_version", "key_of", "run_all"]

Cell = dict[str, object]
"""What to run, as JSON; `kind` says which function."""
Values = dict[str, float]
"""What came out; NaN: there is no such number."""

_RESULTS_DEPEND_ON: Final = (
    "run.py",
    "split.py",
    "paper/alone.py",
    "paper/full.py",
    "paper/mode.py",
    "workload",
    "data",
)


@lru_cache(maxsize=1)
def code_version() -> str:
    """A hash of everything that a cell's values depend on."""
    core = find_spec("conserve._core")
    if core is None or core.origin is None:
        raise RuntimeError("the module conserve._core has no file")
    digest = hashlib.sha256(Path(core.origin).read_bytes())
    here = Path(__file__).parents[1]
    for name in _RESULTS_DEPEND_ON:
        path = here / name
        files = sorted(path.glob("*.*")) if path.is_dir() else [path]
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def key_of(cell: Mapping[str, object]) -> str:
    """Under what a cell's values are stored."""
    text = json.dumps(cell, sort_keys=True) + code_version()
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Store:
    """Finished cells in a file, one line of JSON each. A line cut short by a crash, or broken, is passed over."""

    def __init__(self, path: Path) -> None:
        """Reads what is there. Raises ConfigError if nothing can be kept there."""
        self._path = path
        self._known: dict[str, Values] = {}
        try:
            self._open()
        except OSError as cause:
            raise ConfigError(f"cannot keep finished runs in {path}: {cause.strerror}") from cause

    def _open(self) -> None:
        path = self._path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    told = json.loads(line)
                    values = {
                        name: math.nan if value is None else float(value)
                        for name, value in told["values"].items()
                    }
                    if values:
                        self._known[told["key"]] = values
                except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                    continue
            if self._known or path.stat().st_size:
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")

    def get(self, cell: Mapping[str, object]) -> Values | None:
        """The values of a finished cell."""
        return self._known.get(key_of(cell))

    def put(self, cell: Mapping[str, object], values: Values) -> None:
        """Writes a finished cell down before it returns."""
        key = key_of(cell)
        self._known[key] = values
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "cell": cell, "values": plain}, sort_keys=True) + "\n")


def _ignore_interrupts() -> None:
    # Ctrl-C reaches the whole group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _one(task: tuple[Callable[[Cell], Values], Cell]) -> tuple[Cell, Values]:
    run, cell = task
    return cell, run(cell)


def run_all(
    cells: Iterable[Cell],
    run: Callable[[Cell], Values],
    store: Store,
    *,
    processes: int,
    done: Callable[[int, int], None] | None = None,
) -> None:
    """Brings every cell into the store; `done` hears how many of how many are there."""
    wanted = {key_of(cell): cell for cell in cells}
    missing = [cell for cell in wanted.values() if store.get(cell) is None]
    there = len(wanted) - len(missing)

    def note(finished: int) -> None:
        if done is not None:
            done(there + finished, len(wanted))

    note(0)
    if processes <= 1 or len(missing) < 2:
        for finished, cell in enumerate(missing, start=1):
            store.put(cell, run(cell))
            note(finished)
        return
    # The core lets go of the GIL, the reading of its columns does not.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(processes, len(missing)), initializer=_ignore_interrupts) as pool:
        tasks = ((run, cell) for cell in missing)
        for finished, (cell, values) in enumerate(pool.imap_unordered(_one, tasks), start=1):
            store.put(cell, values)
            note(finished)
