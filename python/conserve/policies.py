"""The names of the placement rules; the core says what each one takes."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["POLICIES", "PolicyName"]

PolicyName: TypeAlias = Literal[
    "strict", "follow-kv", "collocated", "collocated-spread", "disaggregated", "ppd", "ampd", "deflect"
]
POLICIES: Final[tuple[str, ...]] = get_args(PolicyName)
