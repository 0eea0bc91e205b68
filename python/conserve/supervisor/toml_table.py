"""One table of a TOML file, read key by key: each value is checked as it is taken, and what is left over is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

from conserve._meant import meant
from conserve.errors import ConfigError


class Table:
    """Guards which keys were taken. `place` is the table's own name, empty for the top of the file."""

    def __init__(self, place: str, values: Mapping[str, Any]) -> None:
        self.place = place
        self._values = values
        self._known: dict[str, None] = {}

    def wrong(self, key: str, accepted: str) -> ConfigError:
        """The error that names the key and says what it takes."""
        name = f"{self.place}.{key}" if self.place else key
        return ConfigError(f"{name}: takes {accepted}", key=name, accepted=accepted)

    def text(self, key: str) -> str | None:
        """A string that is not empty and can be an argument."""
        value = self._take(key)
        if value is not None and not _is_text(value):
            raise self.wrong(key, f"a string, not {value!r}")
        return None if value is None else str(value)

    def one_of(self, key: str, choices: Sequence[str]) -> str | None:
        """One of some words."""
        value = self._take(key)
        if value is not None and value not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}, not {value!r}{meant(value, choices)}")
        return None if value is None else str(value)

    @overload
    def whole(self, key: str, least: int, most: int) -> int | None: ...
    @overload
    def whole(self, key: str, least: int, most: int, *, default: int) -> int: ...
    def whole(self, key: str, least: int, most: int, *, default: int | None = None) -> int | None:
        """A whole number from `least` to `most`."""
        value = self._take(key)
        if value is None:
            return default
        if not _is_whole(value, least, most):
            raise self.wrong(key, f"a whole number from {least} to {most}, not {value!r}")
        return int(value)

    def wholes(self, key: str, least: int, most: int) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self._take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(_is_whole(each, least, most) for each in value):
            raise self.wrong(key, f"a list of whole numbers from {least} to {most}, not {value!r}")
        return tuple(value)

    def seconds(self, key: str, *, default: float) -> float:
        """A time above 0 and up to a day."""
        value = self._take(key)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= 86_400:
            raise self.wrong(key, f"seconds above 0, up to 86400, not {value!r}")
        return float(value)

    def millis(self, key: str, *, most: int = 60_000) -> float | None:
        """A time from a microsecond up to `most`."""
        value = self._take(key)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0.001 <= value <= most:
            raise self.wrong(key, f"milliseconds from 0.001 to {most}, not {value!r}")
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; one string stands for a list of one."""
        value = self._take(key)
        if value is None:
            return ()
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(map(_is_text, listed)):
            raise self.wrong(key, f"a list of strings, not {value!r}")
        return tuple(listed)

    def strings(self, key: str) -> Mapping[str, str]:
        """A table of strings, for the environment of a process."""
        value = self.table(key)
        for name, each in value.items():
            if not _is_text(name) or "=" in name:
                raise self.wrong(key, f"names of environment variables, not {name!r}")
            if not isinstance(each, str) or "\0" in each:
                raise self.wrong(f"{key}.{name}", f"a string, not {each!r}")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """A table as it is; empty where there is none."""
        value = self._take(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, f"a table, not {value!r}")
        return MappingProxyType(value or {})

    def tables(self, key: str) -> list[Table]:
        """The tables of `[[key]]`, at least one."""
        value = self._take(key)
        if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
            raise self.wrong(key, f"at least one [[{key}]] table")
        return [Table(f"{key}[{place}]", each) for place, each in enumerate(value)]

    def only_table(self, key: str, choices: Sequence[str]) -> tuple[str, Table] | None:
        """Name and content of the one table in a table, `[key.name]`; None where there is no table but a word."""
        value = self._take(key)
        if not isinstance(value, dict):
            return None
        if len(value) != 1 or not all(isinstance(each, dict) for each in value.values()):
            raise self.wrong(key, f"one of {', '.join(choices)}, or one table [{key}.name]")
        ((name, own),) = value.items()
        return name, Table(f"{self.place}.{key}.{name}".lstrip("."), own)

    def table_or_word(self, key: str, words: Sequence[str]) -> Mapping[str, Any] | str | None:
        """A table as it is, or one of some words."""
        value = self._take(key)
        if value is None or isinstance(value, dict) or (isinstance(value, str) and value in words):
            return value
        raise self.wrong(key, f"a table, or one of {', '.join(words)}, not {value!r}")

    def sub(self, key: str) -> Table:
        """A table to be read key by key; empty where there is none."""
        return Table(f"{self.place}.{key}".lstrip("."), self.table(key))

    def nothing_else(self) -> None:
        """Raise ConfigError for the first key that was never asked for."""
        for key in self._values:
            if key not in self._known:
                name = f"{self.place}.{key}" if self.place else key
                known = ", ".join(self._known)
                raise ConfigError(
                    f"{name}: there is no such key; known: {known}{meant(key, self._known)}",
                    key=name,
                    accepted=known,
                )

    def _take(self, key: str) -> Any:  # noqa: ANN401 - TOML has any type; the caller checks
        self._known[key] = None
        return self._values.get(key)


def _is_text(value: object) -> bool:
    # No argument and no variable of a process can hold a NUL.
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
