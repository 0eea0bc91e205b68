"""Writes docs/reference/ from the program itself; `--check` fails when a page is not what it would write.

usage: python scripts/write_reference.py [--check]
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from library_reference import library_page
from pydantic.fields import FieldInfo

from conserve import errors
from conserve.settings import Settings

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def sentence(text: str | None) -> str:
    """The first paragraph of a docstring on one line, safe inside a table."""
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def errors_page() -> str:
    """The exception tree with codes and statuses."""
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        parent = kind.__mro__[1].__name__
        rows.append((f"`{name}`", f"`{parent}`", str(kind.status), f"`{kind.code}`", sentence(kind.__doc__)))
    return (
        "# Errors\n\n"
        "Each error has one stable code and one HTTP status. In Python all are importable from `conserve`; over HTTP the\n"
        "answer is an OpenAI error object, and in a stream that has begun, an event with the same object:\n\n"
        "```json\n"
        '{"error": {"message": "...", "type": "...", "param": null, "code": "overloaded"}}\n'
        "```\n\n" + table(("exception", "derives from", "status", "code", "meaning"), rows)
    )


def accepted(field: FieldInfo) -> str:
    """The values a setting takes."""
    bounds = {}
    for limit in field.metadata:
        bounds |= {key: getattr(limit, key) for key in ("gt", "ge", "lt", "le") if hasattr(limit, key)}
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    choices = [value for value in get_args(field.annotation) if isinstance(value, str)]
    if choices:
        return ", ".join(f"`{value}`" for value in choices)
    if field.annotation is bool:
        return "true, false"
    return ", ".join(
        f"{words[key]} {value:g}" if isinstance(value, float) else f"{words[key]} {value}"
        for key, value in bounds.items()
    )


def settings_page() -> str:
    """Every setting of the door."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        rows.append(
            (f"`{name}`", f"`{shown}`" if shown else "", accepted(field), sentence(field.description))
        )
    return (
        "# Settings\n\n"
        "Each is an argument of `conserve.Settings`, a variable `CONSERVE_<NAME>` and, unless it is secret, an option of\n"
        "`conserve serve` (`--queue-timeout-s`). Arguments and options win over variables. Times are in seconds.\n\n"
        + table(("setting", "default", "accepted", "meaning"), rows)
        + "\nA worker is written `URL[,key=value...]` with the keys `name`, `tier`, `kv_blocks`, `block_size`, `max_model_len`,\n"
        "`prefill_backlog_tokens` and, for a prefiller under the connector `mooncake`, `bootstrap` and `engine_id`.\n"
    )


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "library.md": library_page,
    "settings.md": settings_page,
}


def main() -> int:
    """Writes or checks each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path = FOLDER / name
        text = page() + "\n<!-- Written by scripts/write_reference.py. -->\n"
        if check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run python scripts/write_reference.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
