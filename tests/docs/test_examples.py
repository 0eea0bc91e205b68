"""The examples in README, docs and docstrings run as they are printed.

A page's ```python blocks run in order and share their names, as a reader would type them. Top-level `await` is allowed.
A block under `<!-- not run: why -->` is only compiled. Workers are stand-ins: no example sends a request by itself.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

import conserve

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<skip><!-- not run: .+ -->\n)?(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
STUB = Path(conserve.__file__).with_name("_core.pyi")


class MyClient:
    """What the examples call `my_client`: sends a turn where the route says and returns what an OpenAI client would."""

    def send(self, route: conserve.Route, messages: list[Any]) -> SimpleNamespace:
        assert isinstance(route, conserve.Route)
        return SimpleNamespace(
            usage=SimpleNamespace(prompt_tokens=3_912, completion_tokens=87), messages=messages
        )

    async def asend(self, route: conserve.Route, messages: list[Any]) -> SimpleNamespace:
        return self.send(route, messages)


def check_api_key() -> None:
    """What the examples call `check_api_key`: a dependency of the user's own app."""


def stand_ins() -> dict[str, Any]:
    return {
        "__name__": "__example__",
        "check_api_key": check_api_key,
        "my_client": MyClient(),
        "messages": [{"role": "user", "content": "Hello"}],
    }


def blocks(page: Path) -> Iterator[tuple[CodeType, bool]]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        source = "\n" * line + inspect.cleandoc("\n" + match["code"])
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        yield compile(source, str(page), "exec", flags=flags, dont_inherit=True), match["skip"] is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = stand_ins()
    for code, runs in blocks(page):
        if runs and code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        elif runs:
            eval(code, names)


def test_readme_has_an_example_that_runs() -> None:
    assert any(runs for _, runs in blocks(ROOT / "README.md"))


def docstrings() -> Iterator[tuple[str, str, int]]:
    """Docstrings with examples: of the package, its errors, and the stub (the extension itself has none to show)."""
    for path in (Path(conserve.__file__), Path(conserve.__file__).with_name("errors.py"), STUB):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text and ">>>" in text:
                    yield (
                        f"{path.stem}.{getattr(node, 'name', '')}".rstrip("."),
                        text,
                        getattr(node, "lineno", 0),
                    )


@pytest.mark.parametrize(("name", "text", "line"), [pytest.param(*d, id=d[0]) for d in docstrings()])
def test_docstring(name: str, text: str, line: int) -> None:
    names = stand_ins() | {public: getattr(conserve, public) for public in conserve.__all__}
    example = doctest.DocTestParser().get_doctest(text, names, name, str(STUB), line)
    said: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(said)
