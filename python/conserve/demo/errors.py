"""The demo's own error."""

from __future__ import annotations


class DemoError(RuntimeError):
    """The demo could not be carried out; the message says what happened, to which part, and what to do."""
