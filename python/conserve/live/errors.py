"""The live comparison's own error."""

from __future__ import annotations


class LiveError(RuntimeError):
    """The comparison could not be carried out; the message says what happened, to which part, and what to do."""
