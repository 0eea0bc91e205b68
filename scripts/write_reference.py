"""Writes docs/reference/ from the program itself, and the numbers and figures of pages from bench/results.

`--check` fails when a page is not what it would write.

usage: python scripts/write_reference.py [--check]
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import annotated_types
from library_reference import library_page
from metrics_reference import families, label_rows, rows, sample
from paper_page import PAGE, paper_page
from peer_numbers import against_aims, caption, chart
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from readme_numbers import numbers
from spending import spending

from conserve import errors
from conserve.settings import Settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
README = ROOT / "README.md"
BENCH = ROOT / "bench" / "README.md"
CHART = ROOT / "docs" / "assets" / "peers.svg"


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
    """What a setting takes: its type, then its range."""
    kinds = kinds_of(field.annotation)
    words = {bool: "yes or no", int: "whole number", float: "number", SecretStr: "text, secret"}
    word = next((text for kind, text in words.items() if kind in kinds), "")
    if not word:
        choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
        many = str(field.annotation).startswith("tuple")
        word = ", ".join(f"`{choice}`" for choice in choices) or (
            "several, separated by spaces" if many else "text"
        )
    if type(None) in kinds and field.default is not None:
        word += " or `none`"
    bounds: dict[type, str] = {
        annotated_types.Gt: "> {0.gt:,}",
        annotated_types.Ge: "≥ {0.ge:,}",
        annotated_types.Le: "≤ {0.le:,}",
    }
    limits = [bounds[type(limit)].format(limit) for limit in bounds_of(field) if type(limit) in bounds]
    return ", ".join([word, *limits])


def kinds_of(annotation: object) -> set[object]:
    """The types that an annotation is made of."""
    return {annotation}.union(*map(kinds_of, get_args(annotation)))


def bounds_of(field: FieldInfo) -> Iterable[Any]:
    """The limits of a field, also those inside `X | None`."""
    yield from field.metadata
    for part in get_args(field.annotation):
        for limit in getattr(part, "__metadata__", ()):
            yield from limit.metadata if isinstance(limit, FieldInfo) else (limit,)


def shown(default: object) -> str:
    """A default as one would write it."""
    if default is None or default == ():
        return "–"
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return f"`{' '.join(default)}`"
    return f"`{default}`"


def settings_page() -> str:
    """Every setting."""
    options = {"prefillers": "--prefiller", "decoders": "--decoder", "both": "--both"}
    rows = []
    for name, field in Settings.model_fields.items():
        secret = SecretStr in kinds_of(field.annotation)
        option = options.get(name, f"--{name.replace('_', '-')}")
        option = "–" if secret else f"`{option}`"
        rows.append((f"`{name}`", option, shown(field.default), accepted(field), sentence(field.description)))
    return (
        "# Settings\n\n"
        "Each setting `name` is an argument of `conserve.Settings`, an option of `conserve serve`, and the variable\n"
        "`CONSERVE_NAME`; arguments and options win. What is secret is a variable only. Times are in seconds, sizes in bytes.\n\n"
        "A worker is written `URL[,key=value...]` with the keys `name`, `tier`, `kv_blocks`, `block_size`, `max_model_len`,\n"
        "`prefill_backlog_tokens`, `gpus` (`0+1`), `kv_events` and `kv_replay` (ZeroMQ endpoints like `tcp://d0:5557`: where vLLM\n"
        "publishes its KV events, and where it repeats those that were missed) and, for a prefiller under the connector `mooncake`, `bootstrap` and `engine_id`. Give the\n"
        "option once for each worker; in the variable, separate workers with spaces.\n\n"
        + table(("setting", "option", "default", "takes", "meaning"), rows)
    )


def metrics_page() -> str:
    """Every metric of the router and of the door."""
    found = families(sample())
    return (
        "# Metrics\n\n"
        "`GET /metrics` and `Router.metrics()` give Prometheus text. The names that begin with `conserve_door_` are the\n"
        "proxy's, `conserve_energy_`, `conserve_power_` and those for joules are of `conserve serve` where there is an energy\n"
        "counter; the others are the router's and the same in the library. A metric about something that did not happen, or that\n"
        "nobody told, has no sample. Histograms also have `le`.\n\n"
        + table(("metric", "kind", "labels", "meaning"), rows(found))
        + "\n## Labels\n\n"
        + table(("label", "of", "values"), label_rows(found))
    )


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "library.md": library_page,
    "metrics.md": metrics_page,
    "settings.md": settings_page,
}


def texts() -> dict[Path, str]:
    """Each file that is written here, with what it should say."""
    wanted = {
        FOLDER / name: page() + "\n<!-- Written by scripts/write_reference.py. -->\n"
        for name, page in PAGES.items()
    }
    readme = between(README.read_text(encoding="utf-8"), "numbers", numbers())
    bench = between(BENCH.read_text(encoding="utf-8"), "aims", against_aims())
    bench = between(bench, "spending", spending())
    pages = {README: between(readme, "peers", caption()), BENCH: bench, CHART: chart(), PAGE: paper_page()}
    return wanted | pages


def between(page: str, mark: str, text: str) -> str:
    """The page with this text between its two marks."""
    before, begin, rest = page.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- /{mark} -->\n")
    return f"{before}{begin}{text}\n{end}{after}"


def main() -> int:
    """Writes or checks each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a page is stale")
    check = parser.parse_args().check
    stale = []
    for path, text in texts().items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"stale: {', '.join(stale)}; run python scripts/write_reference.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
