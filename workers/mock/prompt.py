"""What a request asks to be continued, as bytes. A token is four of them, so text and token ids turn into each other."""

from __future__ import annotations

import json
import struct

from conserve_workers.tiny.errors import RequestError

TOKEN_BYTES = 4
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))


def of_chat(messages: object) -> bytes:
    """The prompt of a chat.

    Raises:
        RequestError: these are no messages, or not of text.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", param="messages")
    text = "".join(_turn(number, message) for number, message in enumerate(messages))
    return text.encode("utf-8", "surrogatepass")


def of_completion(given: object) -> bytes:
    """The prompt of a completion: a text or a list of token ids.

    Raises:
        RequestError: it is neither.
    """
    if isinstance(given, list) and given:
        return b"".join(map(_bytes, given))
    if isinstance(given, str) and given:
        return given.encode("utf-8", "surrogatepass")
    raise RequestError("prompt must be a non-empty string or a list of token ids", param="prompt")


def count(data: bytes) -> int:
    """Tokens of `data`, rounded up."""
    return -(-len(data) // TOKEN_BYTES)


def ids(data: bytes) -> list[int]:
    """The tokens of `data`, the last one filled up with zeroes."""
    return list(struct.unpack(f"<{count(data)}I", data.ljust(count(data) * TOKEN_BYTES, b"\0")))


def _bytes(token: object) -> bytes:
    """Only the last bytes of a token may be zero, and not all of them: no text has others."""
    if isinstance(token, int) and not isinstance(token, bool) and 0 < token < 1 << 8 * TOKEN_BYTES:
        data = token.to_bytes(TOKEN_BYTES, "little")
        if 0 not in data.rstrip(b"\0"):
            return data
    raise RequestError("prompt must be a string or one list of this model's token ids", param="prompt")


def _turn(number: int, message: object) -> str:
    at = f"messages[{number}]"
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{at} must be an object whose role is known", param=at)
    calls = message.get("tool_calls")
    return f"<|{role}|>{_text(message.get('content'), at)}{json.dumps(calls) if calls else ''}"


def _text(content: object, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise RequestError(f"{at}.content must be text or a list of text parts", param=f"{at}.content")
        texts.append(text)
    return "\n".join(texts)
