"""A streamed chat completion over the OpenAI API: the text, the tokens, the usage, and when the first token came."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

Message = Mapping[str, str]

# One event may carry the ids of a whole prompt.
READ_BUFFER_BYTES = 1 << 20


class ServingError(RuntimeError):
    """A turn was not served whole; `status` and `code` are the server's, `text` is what had arrived before."""

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, text: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn as the client saw it. Times are in seconds from the moment the request was sent."""

    text: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    finish_reason: str | None
    ttft_s: float
    elapsed_s: float
    headers: Mapping[str, str]


def chat_body(model: str, messages: Sequence[Message], *, max_tokens: int) -> dict[str, Any]:
    """A greedy, streamed request that asks for usage and, as vLLM offers it, for the token ids."""
    return {
        "model": model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": max_tokens,
        "return_token_ids": True,
    }


async def stream_chat(
    session: aiohttp.ClientSession,
    base_url: str,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    on_text: Callable[[str], None] = lambda _text: None,
) -> Answer:
    """Send the request and read the stream to its `[DONE]`; `on_text` is given each piece of text as it comes.

    Raises:
        ServingError: the server refused, an error event came, the stream ended early, or `timeout_s` passed.
    """
    started = time.perf_counter()
    reading = _Reading()
    try:
        async with session.post(
            f"{base_url}/v1/chat/completions",
            json=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            if response.status != 200:
                raise _refusal(response.status, await response.read())
            async for data in _events(response.content):
                if piece := reading.take(data):
                    if reading.first_at is None:
                        reading.first_at = time.perf_counter()
                    on_text(piece)
            answer_headers = {name.lower(): value for name, value in response.headers.items()}
    except TimeoutError:
        raise ServingError(f"no complete answer within {timeout_s:g} s", text=reading.text) from None
    except aiohttp.ClientError as error:
        raise ServingError(f"the connection broke: {error}", text=reading.text) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ServingError(
            f"the stream is not one of chat completions: {error}", text=reading.text
        ) from error
    ended = time.perf_counter()
    return reading.answer(
        headers=answer_headers,
        ttft_s=(reading.first_at or ended) - started,
        elapsed_s=ended - started,
    )


class _Reading:
    """What has been read of one stream."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self._pieces: list[str] = []
        self._prompt_ids: tuple[int, ...] = ()
        self._output_ids: list[int] = []
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._done = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, data: str) -> str:
        """Take in one event; the text it adds."""
        if data == "[DONE]":
            self._done = True
            return ""
        event = json.loads(data)
        if error := event.get("error"):
            code = error.get("code")
            raise ServingError(
                f"error event in the stream: {error.get('message')}", code=code, text=self.text
            )
        self._prompt_ids = tuple(event.get("prompt_token_ids") or ()) or self._prompt_ids
        self._usage = event.get("usage") or self._usage
        piece = ""
        for choice in event.get("choices", ()):
            piece += choice.get("delta", {}).get("content") or ""
            self._output_ids += choice.get("token_ids") or ()
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if piece:
            self._pieces.append(piece)
        return piece

    def answer(self, *, headers: Mapping[str, str], ttft_s: float, elapsed_s: float) -> Answer:
        """The whole answer.

        Raises:
            ServingError: there was no `[DONE]`, or no usage.
        """
        if not self._done:
            raise ServingError("the stream ended without [DONE]", text=self.text)
        if self._usage is None:
            raise ServingError("the stream carried no usage", text=self.text)
        details = self._usage.get("prompt_tokens_details") or {}
        return Answer(
            text=self.text,
            prompt_ids=self._prompt_ids,
            output_ids=tuple(self._output_ids),
            prompt_tokens=int(self._usage["prompt_tokens"]),
            output_tokens=int(self._usage["completion_tokens"]),
            cached_tokens=int(details.get("cached_tokens") or 0),
            finish_reason=self._finish_reason,
            ttft_s=ttft_s,
            elapsed_s=elapsed_s,
            headers=headers,
        )


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The data of each server-sent event; our engines write each on one line."""
    async for line in stream:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8")


def _refusal(status: int, body: bytes) -> ServingError:
    """The server's error object as an exception; the bytes themselves when there is none."""
    try:
        error = json.loads(body)["error"]
        return ServingError(f"{status}: {error['message']}", status=status, code=error.get("code"))
    except (ValueError, KeyError, TypeError):
        return ServingError(f"{status}: {body[:200].decode('utf-8', 'replace')}", status=status)
