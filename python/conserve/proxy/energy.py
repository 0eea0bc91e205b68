"""What the door asks of whoever counts the workers' energy; `conserve.energy.Sampler` is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from conserve._core import Router
    from conserve.settings import Settings

__all__ = ["Energy", "MakeEnergy"]


class Energy(Protocol):
    """The energy of one router's workers."""

    def start(self) -> None:
        """Begin to count."""

    def stop(self) -> None:
        """Count no more; may block for a moment."""

    def told(self) -> dict[str, Any]:
        """What `/v1/energy` answers."""

    def exposition(self) -> str:
        """The same as Prometheus text."""


MakeEnergy: TypeAlias = "Callable[[Router, Settings], Energy]"
