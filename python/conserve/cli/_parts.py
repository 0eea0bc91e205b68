"""How far the parts of a long run are: bars on a terminal, else a line for each tenth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.console import Console
    from rich.progress import TaskID

__all__ = ["Parts"]


class Parts:
    """Told of each part by name how many of how many of its runs are done."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is shown before the block begins."""
        self._console = console
        self._clock = clock
        self._bars: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description:>9}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
            )
            self._bars = Progress(*columns, console=console)
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        self._said: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Bars are drawn from here on."""
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """They stay as they are."""
        if self._bars is not None:
            self._bars.stop()

    def done(self, part: str, finished: int, of: int) -> None:
        """So many of so many runs of a part are done."""
        if self._bars is not None:
            if part not in self._tasks:
                self._tasks[part] = self._bars.add_task(part, total=of)
            self._bars.update(self._tasks[part], completed=finished, total=of)
            return
        now = self._clock()
        since, before = self._begun.setdefault(part, (now, finished))
        tenth = 10 * finished // max(1, of)
        if self._said.get(part) == tenth:
            return
        self._said[part] = tenth
        line = f"{part}: {finished} of {of} runs"
        if before < finished < of:
            left_s = (now - since) / (finished - before) * (of - finished)
            line += f", {_minutes(left_s)} left"
        self._console.print(line, markup=False, highlight=False)


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
