"""The public surface: what `import conserve` brings, and what it does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import conserve
from conserve import _core


def test_everything_in_all_is_there_and_documented() -> None:
    for name in conserve.__all__:
        assert getattr(conserve, name) is not None
        if not name.startswith("__"):
            assert getattr(conserve, name).__doc__, name


def test_base_import_brings_no_dependency() -> None:
    """`import conserve` and a turn work with the standard library alone."""
    program = """
import sys
from pathlib import Path
import conserve
from conserve import _core
from conserve import *
router = Router(decoders=[Decoder("http://d0", kv_blocks=10)])
with router.turn("task-42", prompt_tokens=1):
    pass
strangers = {"fastapi", "pydantic", "aiohttp", "uvicorn", "typer", "rich", "numpy", "torch"} & set(sys.modules)
assert not strangers, strangers
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_missing_extra_says_what_to_install() -> None:
    program = """
import sys
from pathlib import Path
for name in ("fastapi", "pydantic", "pydantic_settings", "aiohttp"):
    sys.modules[name] = None
import conserve
from conserve import _core
for name in ("create_app", "openai_routes", "Settings"):
    assert name in dir(conserve)
    try:
        getattr(conserve, name)
    except ModuleNotFoundError as missing:
        assert "conserve-router[proxy]" in str(missing), missing
    else:
        raise AssertionError(f"{name} came without its dependencies")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Ruoter'"):
        conserve.Ruoter  # type: ignore[attr-defined]  # noqa: B018


def test_help_says_what_the_stub_says() -> None:
    """The stub is where the documentation is written; `help()` shows the first paragraph of it."""
    tree = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))

    def first(text: str | None) -> str:
        return " ".join((text or "").split("\n\n")[0].split())

    compared = 0
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        if kind.name.startswith("_"):
            continue  # a TypedDict that is there for type checkers only
        runtime = getattr(_core, kind.name)
        nodes: list[ast.ClassDef | ast.FunctionDef] = [kind]
        nodes += (member for member in kind.body if isinstance(member, ast.FunctionDef))
        for node in nodes:
            written = first(ast.get_docstring(node))
            if written:
                shown = runtime if node is kind else getattr(runtime, node.name)
                assert first(shown.__doc__) == written, f"{kind.name}.{node.name}"
                compared += 1
    assert compared > 60
