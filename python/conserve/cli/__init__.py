"""The command `conserve`. Each module beside this one is a subcommand; it is imported only when it is called.

A subcommand `name` is a module `name.py` whose docstring's first line is its one-line help and which has a function
`name` (typer reads its signature) or a `typer.Typer` called `app`. Modules that begin with `_` are none.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["commands", "main"]

_EXTRA_OF: Final = {
    "typer": "cli",
    "rich": "cli",
    "fastapi": "proxy",
    "starlette": "proxy",
    "uvicorn": "proxy",
    "aiohttp": "proxy",
    "pydantic": "proxy",
    "pydantic_settings": "proxy",
    "torch": "engine",
    "transformers": "engine",
    "safetensors": "engine",
    "gguf": "engine",
    "numpy": "sim",
    "matplotlib": "sim",
    "pynvml": "energy",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (by default the process's own); the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    called = next((word for word in arguments if not word.startswith("-")), None)
    try:
        from ._app import build

        app = build(commands(), called)
    except ModuleNotFoundError as missing:
        top = (missing.name or "").partition(".")[0]
        if top not in _EXTRA_OF:
            raise
        command = "conserve" if called is None else f"conserve {called}"
        print(f"{command} needs {top}: pip install 'conserve-router[{_EXTRA_OF[top]}]'", file=sys.stderr)
        return 2
    try:
        app(args=arguments, prog_name="conserve")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def commands() -> dict[str, str]:
    """The subcommands there are, with their one-line help, none of them imported."""
    found: dict[str, str] = {}
    for folder in map(Path, __path__):
        for module in pkgutil.iter_modules([str(folder)]):
            source = folder / f"{module.name}.py"
            if not module.name.startswith("_") and source.is_file():
                text = ast.get_docstring(ast.parse(source.read_bytes())) or ""
                found[module.name] = text.partition("\n")[0]
    return dict(sorted(found.items()))
