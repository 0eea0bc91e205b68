"""A request's body to what is to be answered. The rules are `tiny`'s, so that both refuse alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conserve_workers.tiny.errors import RequestError
from conserve_workers.tiny.request import Sampling
from conserve_workers.tiny.server import parse

from .prompt import count, of_chat, of_completion

Kind = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that is served."""

    kind: Kind
    model: str
    prompt: bytes
    sampling: Sampling
    how: parse.Reply
    salt: str


def read(
    body: Mapping[str, Any], kind: Kind, *, model: str, max_model_len: int, default_tokens: int
) -> Asked:
    """Check a body.

    Raises:
        RequestError: anything in it is wrong, too long or not supported.
    """
    parse.check_model(body, model)
    parse.refuse_unsupported(body, chat=kind == "chat")
    if not isinstance(body.get("kv_transfer_params"), dict | None):
        raise RequestError("kv_transfer_params must be an object", param="kv_transfer_params")
    how = parse.reply(body)
    given = prompt(body, kind)
    room = max_model_len - count(given)
    sampling = parse.sampling(body, default_max_tokens=max(1, min(default_tokens, room)), chat=kind == "chat")
    if sampling.max_tokens > room:
        raise RequestError(
            f"this model's maximum context length is {max_model_len} tokens, "
            f"but prompt and answer are {count(given)} + {sampling.max_tokens} tokens",
            param="messages" if kind == "chat" else "prompt",
            code="context_length_exceeded",
        )
    return Asked(kind, model, given, sampling, how, parse.salt(body))


def prompt(body: Mapping[str, Any], kind: Kind) -> bytes:
    """What is to be continued.

    Raises:
        RequestError: there is nothing, or nothing that can be.
    """
    return of_chat(body.get("messages")) if kind == "chat" else of_completion(body.get("prompt"))
