"""Errors of the door itself, as OpenAI error objects. What a turn runs into is worded by the dispatcher."""

from __future__ import annotations

import json
from typing import TypeAlias

from fastapi import Response

from conserve.errors import ConserveError, Overloaded

__all__ = ["Headers", "body_of", "of", "refusal"]

Headers: TypeAlias = list[tuple[bytes, bytes]]


def body_of(message: str, *, code: str, status: int, param: str | None = None) -> bytes:
    """The JSON of an error object; its `type` follows from the status."""
    kind = (
        "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    )
    value = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return json.dumps(value, separators=(",", ":")).encode()


def refusal(
    message: str,
    *,
    code: str,
    status: int,
    param: str | None = None,
    retry_after_s: int | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """A whole response with an error object."""
    extra = dict(headers or {})
    if retry_after_s is not None:
        extra["retry-after"] = str(retry_after_s)
    content = body_of(message, code=code, status=status, param=param)
    return Response(content, status_code=status, headers=extra, media_type="application/json")


def of(error: ConserveError) -> Response:
    """The response for one of our exceptions."""
    after = max(1, round(error.retry_after_s)) if isinstance(error, Overloaded) else None
    return refusal(str(error), code=error.code, status=error.status, retry_after_s=after)
