"""The command tree: the subcommand that was called is real, the others are names with a line of help."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated

import typer

__all__ = ["build"]


def build(commands: Mapping[str, str], called: str | None) -> typer.Typer:
    """The tree over `commands` (name to one-line help); imports the module of `called` only."""
    app = typer.Typer(
        no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None
    )
    app.callback()(_conserve)
    for name, summary in commands.items():
        if name != called:
            app.command(name, help=summary)(_not_called)
            continue
        module = importlib.import_module(f"conserve.cli.{name}")
        nested = getattr(module, "app", None)
        if isinstance(nested, typer.Typer):
            app.add_typer(nested, name=name)
        else:
            app.command(name, short_help=summary)(getattr(module, name))
    return app


def _say_version(wanted: bool) -> None:
    if wanted:
        from conserve import __version__

        print(f"conserve {__version__}")
        raise typer.Exit


def _conserve(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and exit."),
    ] = False,
) -> None:
    """ConServe: a router for LLM agents that schedules the conversation, not the call."""


def _not_called() -> None:
    """Stands for a subcommand that was not called."""
