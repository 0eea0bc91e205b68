"""The names of the placement rules, and the one that runs where none is named; the core says what each one takes."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from conserve._core import DEFAULT_POLICY

__all__ = ["DEFAULT_POLICY", "POLICIES", "PolicyName"]

PolicyName: TypeAlias = Literal[
    "strict", "follow-kv", "collocated", "collocated-spread", "disaggregated", "ppd", "ampd", "deflect"
]
POLICIES: Final[tuple[str, ...]] = get_args(PolicyName)
