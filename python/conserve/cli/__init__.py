"""The command `conserve`. Each module beside this one is a subcommand; it is imported only when it is called.

A subcommand `name` is a module `name.py` whose docstring's first line is its one-line help and which has a function
`name` (typer reads its signature) or a `typer.Typer` called `app`. Modules that begin with `_` are none.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

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
    "pynvml": "energy",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (by default the process's own); the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        import typer
    except ModuleNotFoundError as missing:
        return _complain(missing, "conserve")
    if arguments in (["--version"], ["-V"]):
        from conserve import __version__

        print(f"conserve {__version__}")
        return 0
    known = commands()
    called = next((word for word in arguments if not word.startswith("-")), None)
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_group)
    for name, summary in known.items():
        if name != called:
            app.command(name, help=summary)(_not_called)
            continue
        try:
            _add(app, name, summary)
        except ModuleNotFoundError as missing:
            return _complain(missing, f"conserve {name}")
    try:
        app(args=arguments, prog_name="conserve")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def commands() -> dict[str, str]:
    """The subcommands there are, with their one-line help, none of them imported."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_") or module.ispkg:
            continue
        for folder in __path__:
            source = Path(folder, f"{module.name}.py")
            if source.is_file():
                text = ast.get_docstring(ast.parse(source.read_bytes())) or ""
                found[module.name] = text.partition("\n")[0]
    return dict(sorted(found.items()))


def _add(app: typer.Typer, name: str, summary: str) -> None:
    module = importlib.import_module(f"{__name__}.{name}")
    nested = getattr(module, "app", None)
    if nested is not None:
        app.add_typer(nested, name=name)
    else:
        app.command(name, short_help=summary)(getattr(module, name))


def _group() -> None:
    """ConServe: a router for LLM agents that schedules the conversation, not the call."""


def _not_called() -> None:
    """Stands for a subcommand that was not called."""


def _complain(missing: ModuleNotFoundError, command: str) -> int:
    """Say which extra brings the module that is missing; a bug of ours stays an exception."""
    top = (missing.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(top)
    if extra is None:
        raise missing
    print(f"{command} needs {top}: pip install 'conserve-router[{extra}]'", file=sys.stderr)
    return 2
