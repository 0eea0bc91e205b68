"""Watch a router and its workers at work."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from ._ask import UnreachableError
from ._fit import console
from ._top_look import Look, View, look, view
from ._top_table import tables

__all__ = ["top"]

FAILED: Final = 1
# Times are told over so many seconds at most: long enough for a p95, short enough to see a change.
_WINDOW_S: Final = 60.0
_PIPE_COLUMNS: Final = 200


def top(
    url: Annotated[str, typer.Argument(help="The router's URL.", metavar="URL")] = "http://127.0.0.1:8080",
    once: Annotated[
        bool, typer.Option("--once", help="Show one table and exit; rates over one interval.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A line of JSON for each look instead of tables.")
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Watch a router: occupancy, pins, queue, times and energy of each worker and tier.

    A terminal is redrawn; a pipe or a file gets the tables anew after each interval.

    Works against both doors and needs no GPU. Where the router asks for its control key: CONSERVE_CONTROL_KEY.
    Exit status: 0; 1 the router could not be asked.
    """
    key = os.environ.get("CONSERVE_CONTROL_KEY")
    try:
        first = look(url, key=key)
        if once:
            time.sleep(interval_s)  # A rate needs two looks.
            shown = view(look(url, key=key), before=first)
            _once(url, shown, as_json)
        elif as_json:
            _stream(url, key, first, interval_s)
        else:
            out = console(piped_columns=_PIPE_COLUMNS)
            (_live if out.is_terminal else _blocks)(url, key, first, interval_s, out)
    except UnreachableError as error:
        print(f"conserve top: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Whoever read has left, as `head` does; what Python would flush at its end has no taker either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _once(url: str, shown: View, as_json: bool) -> None:
    if as_json:
        print(_line(shown))
        return
    out = console(piped_columns=_PIPE_COLUMNS)
    out.print(tables(url, shown, width=out.width))


class _History:
    """The looks of the last window."""

    def __init__(self, first: Look) -> None:
        self._looks = deque([first])

    def then(self, now: Look) -> View:
        """What to show now."""
        before = self._looks[-1]
        if now.fleet["counters"]["opened"] < before.fleet["counters"]["opened"]:
            self._looks.clear()  # The router was restarted: what it counted began again.
            self._looks.append(now)
            return view(now)
        self._looks.append(now)
        while len(self._looks) > 2 and now.at_s - self._looks[1].at_s >= _WINDOW_S:
            self._looks.popleft()
        return view(now, before=before, times_since=self._looks[0])


def _stream(url: str, key: str | None, first: Look, interval_s: float) -> None:
    history = _History(first)
    while True:
        time.sleep(interval_s)
        print(_line(history.then(look(url, key=key))), flush=True)


def _looks(url: str, key: str | None, first: Look, interval_s: float) -> Iterator[tuple[View, str | None]]:
    """What to show now and after each interval, and what is wrong: a router that goes away is asked again."""
    history, shown = _History(first), view(first)
    yield shown, None
    while True:
        time.sleep(interval_s)
        trouble = None
        try:
            shown = history.then(look(url, key=key))
        except UnreachableError as error:
            trouble = str(error)
        yield shown, trouble


def _blocks(url: str, key: str | None, first: Look, interval_s: float, out: Console) -> None:
    """Into a pipe or a file: the tables after each interval, with the time, until interrupted."""
    for shown, trouble in _looks(url, key, first, interval_s):
        with out.capture() as block:
            out.print(tables(url, shown, width=out.width, trouble=trouble))
        print(f"{time.strftime('%H:%M:%S')} {block.get()}", flush=True)


def _live(url: str, key: str | None, first: Look, interval_s: float, out: Console) -> None:
    """Redraw until interrupted."""

    def screenful(shown: View, trouble: str | None) -> RenderableType:
        # The cursor stands on the line below.
        return tables(url, shown, width=out.width, height=out.height - 1, trouble=trouble)

    with Live(console=out, auto_refresh=False) as screen:
        for shown, trouble in _looks(url, key, first, interval_s):
            screen.update(screenful(shown, trouble), refresh=True)


def _line(shown: View) -> str:
    return json.dumps(_finite(dataclasses.asdict(shown)))


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """JSON has no infinity: a time above the last bucket is null there, as one that is not known."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
