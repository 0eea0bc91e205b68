"""Show one conversation, and the key by which the log has it."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import quote

import typer

from ._ask import UnreachableError, ask, base_of

__all__ = ["conversation"]

FAILED: Final = 1
_CALLER: Final = "CONSERVE_CALLER_AUTHORIZATION"
_KEY: Final = "x-conserve-conversation"
_IS_KEY: Final = re.compile("[0-9a-f]{32}")


def conversation(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="As the client calls it; an open one also by its key.", show_default=False
        ),
    ],
    url: Annotated[str, typer.Argument(help="The router's URL.", metavar="URL")] = "http://127.0.0.1:8080",
    key_only: Annotated[
        bool,
        typer.Option("--key", help="Print the key alone, also of a conversation that is over."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What the router tells, as JSON.")] = False,
) -> None:
    """Show one conversation, and the key by which the log has it.

    Its lines: grep "$(conserve conversation task-42 --key)" router.log

    The log names conversations by a keyed hash, because a client's id may say who somebody is. Keys stay the same over a
    restart of the router only with CONSERVE_SECRET set. An id belongs to a caller: where callers send Authorization, give the
    header's value in CONSERVE_CALLER_AUTHORIZATION. Without it, ask the client for x-conserve-conversation of an answer.

    Exit status: 0; 1 there is no such conversation (with --key: 0), or the router could not be asked.
    """
    caller = os.environ.get(_CALLER)
    try:
        answer = ask(
            base_of(url),
            f"/v1/conversations/{quote(name, safe='')}",
            {"authorization": caller} if caller else {},
            allowed=(404,),
        )
        told = answer.json
        found = answer.status == 200
        key = told.get("key") if found else answer.headers.get(_KEY)
        if not isinstance(key, str):
            raise UnreachableError(f"{answer.base} answered something else than a ConServe router does")
    except UnreachableError as error:
        _end(str(error))
    if key_only:
        print(key)
    elif found:
        print(json.dumps(told) if as_json else _text(told))
    else:
        # A client's id may look like a key, so which of the two it is cannot be told.
        known = ", if it is not its key already" if _IS_KEY.fullmatch(name) else ""
        _end(f"{told['error']['message']}; in the log it is {key}{known}")


def _text(told: dict[str, Any]) -> str:
    rows = {
        "key": told["key"],
        "phase": told["phase"],
        "decoder": "-" if told["decoder"] is None else f"{told['decoder']} ({told['decoder_url']})",
        "turn": f"{told['turn']}, {told['in_flight']} under way",
        "KV blocks": told["blocks"],
        "idle": f"{told['idle_s']:.1f} s",
        "TTFET": "-" if told["ttfet_s"] is None else f"{told['ttfet_s']:.3f} s",
        "tokens": told["tokens"],
    }
    if told["energy_j"] is not None:
        rows["energy"] = f"{told['energy_j']:.3g} J"
    return "\n".join(f"{title:<10}{value}" for title, value in rows.items())


def _end(message: str) -> NoReturn:
    print(f"conserve conversation: {message}", file=sys.stderr)
    raise typer.Exit(FAILED) from None
