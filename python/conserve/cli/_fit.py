"""Tables no wider than a terminal: columns that do not fit go to a further table. And how wide that is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "console", "fitted"]

_UNBOUNDED: Final = Console(width=10_000)


def console(*, piped_columns: int) -> Console:
    """Where to print: as wide as the terminal is or COLUMNS says; without both, as in a pipe, so many columns."""
    told = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console() if told else Console(width=piped_columns)


@dataclass(frozen=True, slots=True)
class Column:
    """A title, and a cell for each row; numbers stand on the right."""

    title: str
    cells: Sequence[str | Text]


def fitted(
    head: Sequence[Column], columns: Sequence[Column], *, width: int, title: str | None = None
) -> list[Table]:
    """Tables that hold every column in turn, each with the first of `head` on its left, the first one with all of them."""
    made: list[Table] = []
    rest = list(columns)
    while rest or not made:
        left = head if not made else head[:1]
        count, least = len(rest), 0 if len(left) > 1 else 1
        table = _table(left, rest, None if made else title)
        while count > least and Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).maximum > width:
            count -= 1
            table = _table(left, rest[:count], None if made else title)
        made.append(table)
        del rest[:count]
    return made


def _table(head: Sequence[Column], columns: Sequence[Column], title: str | None) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in head:
        table.add_column(column.title, no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for row in zip(*(column.cells for column in (*head, *columns)), strict=True):
        # As Text, because a name may hold what rich takes for markup.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table
