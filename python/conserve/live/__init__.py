"""Policies side by side on real engines: the same conversations and arrivals through one door after the other."""

from .errors import LiveError
from .plan import LivePlan, Script, Step
from .run import run_live

__all__ = ["LiveError", "LivePlan", "Script", "Step", "run_live"]
