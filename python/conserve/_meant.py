"""What somebody meant who wrote a word that is not known."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["meant"]


def meant(word: object, known: Iterable[str], *, least: float = 0.6) -> str:
    """`; did you mean NAME?`, to be put behind a refusal; empty where no known word is as like as `least`, of 1."""
    near = get_close_matches(word, list(known), n=1, cutoff=least) if isinstance(word, str) else []
    return f"; did you mean {near[0]}?" if near else ""
