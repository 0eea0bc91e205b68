"""The log's one line for each decision worth asking about: where a conversation went, what was refused.

Promises: no prompt, no answer, no credential; of an error only its code, because a worker's message may quote the prompt.
A turn that runs where its conversation is pinned says nothing.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final

from .errors import Headers

__all__ = ["is_told", "say"]

logger = logging.getLogger(__name__)

# The longest part of a header that is logged, in bytes.
_LONGEST: Final = 256
_SLUG: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_told(level: int) -> bool:
    """Whether lines of that level are written."""
    return logger.isEnabledFor(level)


def say(path: str, status: int, headers: Headers, body: bytes | None, reason: str | None = None) -> None:
    """Log how a turn was answered; `body` is None for a stream, `reason` says why it ran there."""
    level = logging.WARNING if status >= 500 else logging.INFO
    if not logger.isEnabledFor(level):
        return
    told = {name: _plain(value) for name, value in headers if name.startswith(b"x-")}
    request = told.get(b"x-request-id", "-")
    if status >= 400:
        logger.log(level, "%s: answered %d %s; request %s", path, status, _code(body), request)
        return
    route = told.get(b"x-conserve-route")
    if route is not None and route != "pinned":
        prefiller = told.get(b"x-conserve-prefiller")
        logger.info(
            "conversation %s: turn %s, %s: decoder %s, %s (%s); request %s",
            told.get(b"x-conserve-conversation", "-"),
            told.get(b"x-conserve-turn", "-"),
            route,
            told.get(b"x-conserve-decoder", "-"),
            "no handoff" if prefiller is None else f"handed over from {prefiller}",
            reason or "why is unknown",
            request,
        )


def _plain(value: bytes) -> str:
    """A header in one line of a log: a client chooses its request id, and a terminal obeys control characters."""
    text = value[:_LONGEST].decode("utf-8", "replace")
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _code(body: bytes | None) -> str:
    try:
        code = json.loads(body or b"")["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return "without a code"
    return code if isinstance(code, str) and _SLUG.fullmatch(code) else "without a code"
