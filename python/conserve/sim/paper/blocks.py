"""A report as a list of blocks, written as Markdown or as one HTML page."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

__all__ = ["Block", "Figure", "Heading", "Listing", "Paragraph", "Table", "as_html", "as_markdown"]


@dataclass(frozen=True, slots=True)
class Heading:
    """A title of a level from 1."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text; `code` and **strong** as in Markdown."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What to type."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first `words` columns are text, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture beside the report."""

    name: str
    says: str


Block = Heading | Paragraph | Listing | Table | Figure


def as_markdown(blocks: list[Block], *, figures: str) -> str:
    """The report; its pictures lie in the folder `figures`."""
    return "\n\n".join(_markdown(block, figures) for block in blocks) + "\n"


def _markdown(block: Block, figures: str) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {block.text}"
        case Paragraph():
            return block.text
        case Listing():
            return f"```\n{block.text}\n```"
        case Figure():
            return f"![{block.says}]({figures}{block.name})"
        case Table():
            marks = ["---" if at < block.words else "---:" for at in range(len(block.header))]
            lines = [block.header, marks, *block.rows]
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre, code { background: #f4f4f4; } pre { padding: .6rem; } img { max-width: 100%; }
"""


def as_html(blocks: list[Block], *, title: str, figures: str) -> str:
    """The same as a page of its own."""
    body = "\n".join(_html(block, figures) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _html(block: Block, figures: str) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
        case Paragraph():
            return f"<p>{_inline(block.text)}</p>"
        case Listing():
            return f"<pre>{html.escape(block.text)}</pre>"
        case Figure():
            says = html.escape(block.says, quote=True)
            return f'<p><img src="{html.escape(figures + block.name, quote=True)}" alt="{says}"></p>'
        case Table():
            head = _row(block.header, "th", block.words)
            rows = "\n".join(_row(row, "td", block.words) for row in block.rows)
            return f"<table>\n<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table>"


def _row(cells: tuple[str, ...], tag: str, words: int) -> str:
    marked = (
        f"<{tag}>{_inline(cell)}</{tag}>" if at < words else f'<{tag} class="n">{_inline(cell)}</{tag}>'
        for at, cell in enumerate(cells)
    )
    return f"<tr>{''.join(marked)}</tr>"


def _inline(text: str) -> str:
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
