"""What rich prints, without the spaces that fill tables up to their width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

__all__ = ["Trimmed"]


class Trimmed:
    """Lines without the spaces that fill a table up to its width; of `height` lines at most, the last one then says how many more there are."""

    def __init__(self, *parts: RenderableType, height: int | None = None) -> None:
        """What is printed, one below the other."""
        self._whole = Group(*parts)
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines."""
        lines = console.render_lines(self._whole, options.update(height=None), pad=False)
        height = len(lines) if self._height is None else self._height
        is_cut = len(lines) > height
        for line in lines[: height - 1] if is_cut else lines:
            yield from _trimmed(line)
            yield Segment.line()
        if is_cut:
            yield Text(f"{len(lines) - height + 1} more lines: a taller terminal, or --once", "bold")


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].control:
        last = kept.pop()
        if text := last.text.rstrip():
            kept.append(Segment(text, last.style))
            break
    return kept
