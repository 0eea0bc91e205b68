"""Serve the OpenAI API in front of a fleet of workers.

Every setting is an option here and a variable `CONSERVE_<NAME>` there; what is secret is a variable only, because a
command line can be read by everybody on the machine.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, get_args, get_origin

import typer
from pydantic import SecretStr

from conserve.errors import ConfigError
from conserve.settings import WORKER_KEYS, Settings

__all__ = ["serve"]

_WORKERS: Final = {"prefillers": "--prefiller", "decoders": "--decoder", "both": "--both"}
_logger = logging.getLogger(__name__)
_REPEATED: Final = ("policy_option",)
# In a terminal nobody follows a link.
_LINK: Final = re.compile(r"\[[^\]]+\]\(\.\./([^)]+)\)")
# What the native door says behind the reason.
_OF_RUST: Final = re.compile(r" \(os error \d+\)$")
_LEVELS: Final = ("debug", "info", "warning", "error")


def _run(*, log_level: str, ready_file: Path | None, **given: object) -> None:
    """Serve the OpenAI API in front of a fleet of workers.

    A worker is URL[,key=value...]; give the option once for each worker. The keys: {worker_keys}.

    Each option is also CONSERVE_<NAME> in the environment; CONSERVE_WORKER_KEY, CONSERVE_CONTROL_KEY and CONSERVE_SECRET
    only there.
    """
    if log_level not in _LEVELS:
        _end(f"--log-level: takes one of {', '.join(_LEVELS)}, not {log_level!r}")
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if ready_file is not None and not ready_file.absolute().parent.is_dir():
        _end(f"--ready-file {ready_file}: there is no folder {ready_file.absolute().parent}")
    for warning in Settings.misspelt(os.environ):
        _logger.warning(warning)
    try:
        settings = Settings(**{key: value for key, value in given.items() if value not in (None, [])})
        if not settings.decoders and not settings.both:
            _end("no decoder: give --decoder URL for each, or --both URL, or CONSERVE_DECODERS")
        from conserve.energy.sampler import Sampler
        from conserve.proxy.server import serve as serve_door

        try:
            serve_door(settings, ready_file=ready_file, energy=Sampler.of)
        except OSError as error:
            why = _OF_RUST.sub("", error.strerror or str(error))
            _end(f"cannot listen at {settings.host}:{settings.port}: {why}; see --host and --port")
    except ConfigError as error:
        _end(str(error))


def _end(message: str) -> NoReturn:
    print(f"conserve serve: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _options() -> dict[str, Any]:
    """Name and annotated type of each option, from the settings themselves."""
    made: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        if SecretStr in kinds:
            continue
        text = _LINK.sub(r"docs/\1", field.description or "")
        if name in _WORKERS:
            option = typer.Option(_WORKERS[name], help=text, metavar="URL[,key=value...]", show_default=False)
            made[name] = Annotated[list[str] | None, option]
        elif name in _REPEATED:
            option = typer.Option(
                f"--{name.replace('_', '-')}", help=text, metavar="key=value", show_default=False
            )
            made[name] = Annotated[list[str] | None, option]
        elif bool in kinds:
            shown = f"{text} [default: {'yes' if field.default else 'no'}]"
            flag = name.replace("_", "-")
            made[name] = Annotated[
                bool | None, typer.Option(f"--{flag}/--no-{flag}", help=shown, show_default=False)
            ]
        else:
            default = " ".join(field.default) if isinstance(field.default, tuple) else field.default
            metavar = "<float>" if float in kinds else "<int>" if int in kinds else "<str>"
            if get_origin(field.annotation) is Literal:
                metavar = f"[{'|'.join(get_args(field.annotation))}]"
            shown = text if default is None else f"{text} [default: {default}]"
            option = typer.Option(
                f"--{name.replace('_', '-')}",
                help=shown,
                metavar=metavar,
                show_default=False,
            )
            made[name] = Annotated[str | None, option]
    return made


def _with_options() -> Callable[..., None]:
    """`_run` with a signature that typer can read."""
    options = _options()
    options["log_level"] = Annotated[str, typer.Option("--log-level", help=f"One of {', '.join(_LEVELS)}.")]
    options["ready_file"] = Annotated[
        Path | None,
        typer.Option("--ready-file", help="Written when ready: JSON with the URL.", show_default=False),
    ]
    defaults: dict[str, object] = {"log_level": "info"}

    def serve(log_level: str, ready_file: Path | None, **values: object) -> None:
        _run(log_level=log_level, ready_file=ready_file, **values)

    serve.__doc__ = (_run.__doc__ or "").replace("{worker_keys}", ", ".join(WORKER_KEYS))
    serve.__annotations__ = {**options, "return": None}
    serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind
            )
            for name, kind in options.items()
        ]
    )
    return serve


serve = _with_options()
