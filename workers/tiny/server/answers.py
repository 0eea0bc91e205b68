"""What goes back to the client: OpenAI's objects, whole or in pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from conserve_workers.tiny.request import Output

Kind = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of an answer that all its objects share."""

    kind: Kind
    id: str
    model: str
    prompt: tuple[int, ...]
    token_ids: bool = False
    """Whether the client asked for `return_token_ids`."""
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self, output: Output) -> dict[str, Any]:
        """Token counts; `cached_tokens` are those of the prompt that were not computed for this request."""
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": output.output_tokens,
            "total_tokens": len(self.prompt) + output.output_tokens,
            "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
        }

    def whole(self, text: str, tokens: Sequence[int], last: Output) -> dict[str, Any]:
        """The answer in one object."""
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
            "logprobs": None,
        }
        if self.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        named: dict[str, Any] = {}
        if self.token_ids:
            choice["token_ids"] = tokens
            # vLLM names a chat's prompt beside its choices, a completion's in the choice.
            (named if self.kind == "chat" else choice)["prompt_token_ids"] = self.prompt
        kind = "chat.completion" if self.kind == "chat" else "text_completion"
        return {
            **self._head(kind),
            "choices": [choice],
            "usage": self.usage(last),
            "kv_transfer_params": last.kv_transfer_params,
            **named,
        }

    def first(self, *, usage: bool) -> dict[str, Any] | None:
        """The object before any text: a chat's role."""
        if self.kind == "text":
            return None
        piece = self._piece({"delta": {"role": "assistant", "content": ""}}, None, usage=usage)
        return {**piece, "prompt_token_ids": self.prompt} if self.token_ids else piece

    def piece(self, output: Output, *, usage: bool) -> dict[str, Any]:
        """Some text, and at the end the reason for it."""
        if self.kind == "chat":
            body: dict[str, Any] = {"delta": {"content": output.text} if output.text else {}}
        else:
            body = {"text": output.text}
        if output.finish_reason is not None:
            body["stop_reason"] = output.stop_reason
        if self.token_ids:
            body["token_ids"] = output.tokens
            if self.kind == "text" and output.output_tokens == len(output.tokens):
                body["prompt_token_ids"] = self.prompt
        piece = self._piece(body, output.finish_reason, usage=usage)
        if output.kv_transfer_params is not None:
            piece["kv_transfer_params"] = output.kv_transfer_params
        return piece

    def last(self, output: Output) -> dict[str, Any]:
        """The object with the counts, for a client that asked for it."""
        return {**self._head(self._chunk_kind), "choices": [], "usage": self.usage(output)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.kind == "chat" else "text_completion"

    def _piece(self, body: dict[str, Any], reason: str | None, *, usage: bool) -> dict[str, Any]:
        piece = {
            **self._head(self._chunk_kind),
            "choices": [{"index": 0, **body, "logprobs": None, "finish_reason": reason}],
        }
        if usage:
            piece["usage"] = None
        return piece

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def error(message: str, *, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kinds = {404: "not_found_error", 413: "request_too_large", 503: "service_unavailable_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
