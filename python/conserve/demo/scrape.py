"""Read what the router and the workers say about themselves: JSON and Prometheus text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from .errors import DemoError

_SAMPLE = re.compile(
    r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|Inf|NaN))(?:\s|$)"
)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one Prometheus text."""

    rows: tuple[tuple[str, Mapping[str, str], float], ...]

    @classmethod
    def parse(cls, text: str) -> Samples:
        """Read every sample line; comments and lines that are none are passed over."""
        matches = (_SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
        return cls(
            tuple(
                (match[1], dict(_LABEL.findall(match[2] or "")), float(match[3]))
                for match in matches
                if match
            )
        )

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of `name` that carry these labels; 0 when there is none."""
        return sum(
            value
            for row, found, value in self.rows
            if row == name and all(found.get(key) == wanted for key, wanted in labels.items())
        )


async def get_json(
    session: aiohttp.ClientSession, url: str, *, headers: Mapping[str, str] | None = None
) -> Any:  # noqa: ANN401 - JSON
    """The JSON at `url`.

    Raises:
        DemoError: it was not answered with 200.
    """
    async with session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as response:
        if response.status != 200:
            raise DemoError(f"{url} answered {response.status}: {(await response.text())[:200]}")
        return await response.json()


async def get_samples(session: aiohttp.ClientSession, url: str) -> Samples:
    """The metrics of the process at `url`.

    Raises:
        DemoError: it was not answered with 200.
    """
    async with session.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=10)) as response:
        if response.status != 200:
            raise DemoError(f"{url}/metrics answered {response.status}")
        return Samples.parse(await response.text())
