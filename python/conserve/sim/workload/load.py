"""Readers of recorded traces: one conversation at a time, every number checked.

Formats: JSON Lines (one conversation per line, plain or gzip) and the paper's length table (CSV, rows of one
conversation together). A record that breaks the schema is refused with its file, line and field.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import IO, TYPE_CHECKING, Final, NoReturn

from conserve.errors import ConfigError

from .record import Conversation, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["read_arrivals", "read_jsonl", "read_length_table"]

MAX_TOKENS: Final = 16_000_000
"""No context of a model in use comes near it; a larger number is a broken record."""
MAX_GAP_S: Final = 30 * 86_400.0
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


def read_jsonl(path: Path) -> Iterator[Conversation]:
    """The conversations of a JSON Lines trace, in the file's order.

    A missing gap counts as 0 s; `gap_adj_s`, where present, replaces `gap_s` (it lacks a known recording fault). An append
    of 0 tokens becomes 1, since a call without a new token does not exist on the wire.

    Raises:
        ConfigError: the file cannot be read, or a record breaks the schema; names file, line and field.
    """
    with _lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                _refuse(place, f"the line is longer than {MAX_LINE_BYTES:,} bytes")
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as cause:
                raise ConfigError(
                    f"{place}: not JSON ({cause}); each line must hold one conversation"
                ) from cause
            yield _conversation(record, place)


def read_length_table(path: Path, *, max_turns: int | None = None) -> Iterator[Conversation]:
    """The conversations of a table `conv_id,iter_id,appended_input,total_input,out_token_size,carried_over`.

    `appended_input` of a later turn is the new text alone; what the engine must compute is `total_input - carried_over`.
    There is no tool time. `max_turns` keeps the first turns of each (the paper used 5).

    Raises:
        ConfigError: the file cannot be read, or a row breaks the schema; names file, line and column.
    """
    columns = ("conv_id", "iter_id", "total_input", "out_token_size", "carried_over")
    with _lines(path) as lines:
        rows = csv.DictReader(lines)
        missing = [name for name in columns if name not in (rows.fieldnames or ())]
        if missing:
            _refuse(f"{path}:1", f"no column {', '.join(missing)}; the header must name {', '.join(columns)}")
        numbered = ((number, row) for number, row in enumerate(rows, start=2))
        for name, group in groupby(numbered, key=lambda item: item[1]["conv_id"]):
            turns: list[TurnRecord] = []
            for number, row in group:
                place = f"{path}:{number}"
                step, total, output, carried = (_cell(row, column, place) for column in columns[1:])
                if step != len(turns):
                    _refuse(place, f"iter_id is {step} where {len(turns)} is due")
                if carried >= total:
                    _refuse(place, f"carried_over {carried:,} is not below total_input {total:,}")
                turns.append(
                    TurnRecord(append_tokens=total - carried, output_tokens=output, reuse_tokens=carried)
                )
            kept = turns[:max_turns]
            yield Conversation(id=f"sb_{name}", turns=(*kept[:-1], _shown(kept[-1])))


def read_arrivals(path: Path) -> Iterator[float]:
    """The times, in seconds, of a table with a column `t_s`; they must not go back.

    Raises:
        ConfigError: the file cannot be read, or a time is missing, negative or earlier than the one before.
    """
    before = 0.0
    with _lines(path) as lines:
        rows = csv.DictReader(lines)
        if "t_s" not in (rows.fieldnames or ()):
            _refuse(f"{path}:1", "no column t_s")
        for number, row in enumerate(rows, start=2):
            try:
                at = float(row["t_s"])
            except (TypeError, ValueError):
                _refuse(f"{path}:{number}", f"t_s is {row['t_s']!r}, not a number")
            if not math.isfinite(at) or at < before:
                _refuse(f"{path}:{number}", f"t_s is {at:g}; times must be finite and must not go back")
            before = at
            yield at


def _conversation(record: object, place: str) -> Conversation:
    if not isinstance(record, dict):
        _refuse(place, "not an object with id and turns")
    name = record.get("id")
    if not isinstance(name, str) or not name:
        _refuse(place, "id is not a text")
    turns = record.get("turns")
    if not isinstance(turns, list) or not turns:
        _refuse(place, "turns is not a list of at least one turn")
    parent = record.get("parent")
    return Conversation(
        id=name,
        turns=tuple(_turn(turn, index, f"{place}: turn {index + 1}") for index, turn in enumerate(turns)),
        arrival_s=_seconds(record, "arrival_s", place),
        shared_prefix_tokens=_tokens(record, "shared_prefix_tokens", place, default=0),
        resumed=record.get("resumed") is True,
        parent=parent if isinstance(parent, str) else None,
    )


def _turn(turn: object, index: int, place: str) -> TurnRecord:
    if not isinstance(turn, dict):
        _refuse(place, "not an object")
    prompt = _tokens(turn, "input_tokens", place)
    if prompt == 0:
        _refuse(place, "input_tokens is 0; a prompt has at least one token")
    append = min(max(1, _tokens(turn, "append_tokens", place)), prompt)
    gap = _seconds(turn, "gap_adj_s", place)
    if gap is None:
        gap = _seconds(turn, "gap_s", place)
    return TurnRecord(
        append_tokens=prompt if index == 0 else append,
        output_tokens=_tokens(turn, "output_tokens", place),
        reuse_tokens=0 if index == 0 else prompt - append,
        gap_s=0.0 if index == 0 or gap is None else gap,
        visible=turn.get("visible") is True,
        reset=turn.get("reset") is True,
    )


def _shown(turn: TurnRecord) -> TurnRecord:
    return replace(turn, visible=True)


def _tokens(record: dict[str, object], key: str, place: str, *, default: int | None = None) -> int:
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
        _refuse(place, f"{key} is {value!r}; it must be a whole number from 0 to {MAX_TOKENS:,}")
    return value


def _seconds(record: dict[str, object], key: str, place: str) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_GAP_S:
        _refuse(place, f"{key} is {value!r}; it must be null or seconds from 0 to {MAX_GAP_S:,.0f}")
    return float(value)


def _cell(row: dict[str, str], column: str, place: str) -> int:
    value = row[column]
    try:
        number = int(value)
    except (TypeError, ValueError):
        _refuse(place, f"{column} is {value!r}, not a whole number")
    if not 0 <= number <= MAX_TOKENS:
        _refuse(place, f"{column} is {number}; it must be from 0 to {MAX_TOKENS:,}")
    return number


@contextmanager
def _lines(path: Path) -> Iterator[IO[str]]:
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as lines
        ):
            yield lines
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as cause:
        raise ConfigError(f"cannot read the trace {path}: {cause}") from cause


def _refuse(place: str, problem: str) -> NoReturn:
    raise ConfigError(f"{place}: {problem}")
