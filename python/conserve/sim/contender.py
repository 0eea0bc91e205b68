"""A policy in a comparison, as it is written: `ampd(min, X=0)`, and `follow-kv@both` on workers that all do both.

A policy that has a use for prefillers gets the roles that were named, the others the same workers all doing both; so does
every policy with `@both`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conserve._core import policies
from conserve._meant import meant
from conserve.errors import ConfigError
from conserve.policies import DEFAULT_POLICY, POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ORACLE", "USUAL", "Contender", "all_both", "split_names"]

ORACLE: Final = "oracle"
"""`ampd` in the simulator that is told the true times."""
USUAL: Final = ",".join(dict.fromkeys((DEFAULT_POLICY, "strict", "collocated")))
"""What is compared where no policy is named: the default, the paper's rule, and the plain one."""

_PREFILLERS: Final[dict[str, str]] = {ORACLE: "needed"} | {name: use for name, use, _ in policies()}
_SEPARATOR: Final = re.compile(r",(?![^(]*\))")
_BOTH: Final = "@both"


def split_names(text: str) -> tuple[str, ...]:
    """Policies separated by commas, each with its options in parentheses: `strict,ampd(min, X=0)`."""
    return tuple(name.strip() for name in _SEPARATOR.split(text))


@dataclass(frozen=True, slots=True)
class Contender:
    """See the module."""

    policy: str
    """With its options."""
    is_told_both: bool = False
    """`@both` was written."""

    @classmethod
    def read(cls, text: str, *, known: Sequence[str] = POLICIES) -> Contender:
        """The contender that is written so.

        Raises:
            ConfigError: the policy is not one of `known`; its options are the core's to refuse.
        """
        policy = text.strip().removesuffix(_BOTH).strip()
        read = cls(policy, is_told_both=policy != text.strip())
        if read.name not in known:
            raise ConfigError(
                f"policy is {text!r}; choose from {', '.join(known)}, "
                f"with {_BOTH} at the end for workers that all do both{meant(read.name, known)}"
            )
        return read

    @property
    def name(self) -> str:
        """Without the options."""
        return self.policy.partition("(")[0].strip()

    @property
    def options(self) -> tuple[str, ...]:
        """As `key=value`; a word alone is the rule."""
        words = [word.strip() for word in self.policy.partition("(")[2].rstrip(") ").split(",")]
        return tuple(word if "=" in word else f"rule={word}" for word in words if word)

    @property
    def hands_over(self) -> bool:
        """Whether a turn may run on another worker than the one that computed its prompt."""
        return _PREFILLERS[self.name] != "unused"

    @property
    def hands_over_among_equals(self) -> bool:
        """Whether it may also where all workers do both: `strict` never, `follow-kv` with options only."""
        return self.hands_over and self.name != "strict" and (self.name != "follow-kv" or bool(self.options))

    @property
    def does_both(self) -> bool:
        """Whether all workers do both."""
        return self.is_told_both or not self.hands_over

    @property
    def needs_prefillers(self) -> bool:
        """Whether it is meant for a fleet with workers that only compute prompts."""
        return not self.does_both and _PREFILLERS[self.name] == "needed"

    def called(self, policy: str) -> str:
        """`policy`, which is what the core calls it, as one writes this contender."""
        return f"{policy}{_BOTH}" if self.is_told_both else policy


def all_both(contenders: Iterable[str]) -> str:
    """Says at the end of a title under which contenders every worker does both; empty if under none."""
    names = ", ".join(dict.fromkeys(contenders))
    return f"; every worker does both under {names}" if names else ""
