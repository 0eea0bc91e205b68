"""Tokens of one answer to text as it grows: whole characters only, nothing past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from conserve_workers.tiny.model.tokenizer import Tokenizer

_CONTEXT_TOKENS = 6
_INCOMPLETE = "\ufffd"


class TextStream:
    """Feed it tokens; it returns the text that is safe to send, and says when a stop string was met.

    The concatenation of all returned pieces is the answer, however the pieces fall.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_CONTEXT_TOKENS:])
        self._start = 0
        self._shown = len(self._tokens)
        self._stop = tuple(stop)
        self._longest = max((len(text) for text in self._stop), default=0)
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, token: int, *, check_stop: bool = True) -> str:
        """Add a token. With `check_stop` false, stop strings are let through (the answer is still too short)."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._start : self._shown])
        after = self._tokenizer.decode(self._tokens[self._start :])
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return ""
        self._start, self._shown = self._shown, len(self._tokens)
        return self._pass_on(after[len(before) :], check_stop=check_stop)

    def finish(self) -> str:
        """Text that was held back; the answer ends here."""
        if self.stopped_by is not None:
            return ""
        before = self._tokenizer.decode(self._tokens[self._start : self._shown])
        after = self._tokenizer.decode(self._tokens[self._start :])
        text, self._held = self._held + after[len(before) :], ""
        return text

    def _pass_on(self, text: str, *, check_stop: bool) -> str:
        if not self._stop:
            return text
        held = self._held + text
        if check_stop:
            found = [(at, stop) for stop in self._stop if (at := held.find(stop)) >= 0]
            if found:
                at, self.stopped_by = min(found, key=lambda hit: (hit[0], -len(hit[1])))
                self._held = ""
                return held[:at]
        cut = len(held) - (self._possible_stop(held) if check_stop else 0)
        self._held = held[cut:]
        return held[:cut]

    def _possible_stop(self, text: str) -> int:
        """Characters at the end of `text` that may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop if len(stop) > length):
                return length
        return 0
