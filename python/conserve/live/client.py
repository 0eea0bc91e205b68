"""One turn over HTTP, counted in tokens: a prompt of token ids, an answer of a given length, and when each token came."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from conserve.demo.scrape import get_json

from .errors import LiveError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Answer", "Refused", "ask", "body", "served_model", "session", "token_pool"]

_READ_BUFFER_BYTES: Final = 1 << 20  # One event may carry the ids of a whole prompt.
_ALPHABET: Final = (
    "The quick brown fox jumps over the lazy dog while 0123456789 people watch; nobody moves, "
    "everyone waits. Files, tools and tests: read, write, run! Is it done? Perhaps (not yet)."
)


class Refused(Exception):  # noqa: N818 - an outcome of a turn, not a fault of ours
    """The turn was not served whole; the words say what the server answered."""


@dataclass(slots=True)
class Answer:
    """One turn as the client saw it; times of `time.perf_counter()`."""

    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """Between neighbouring tokens; those that come together share the gap before them."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any], now_s: float) -> None:
        """Takes in one event of the stream.

        Raises:
            Refused: it is an error event.
        """
        if error := event.get("error"):
            raise Refused(f"error event: {error.get('message')}")
        if usage := event.get("usage"):
            self.prompt_tokens = int(usage["prompt_tokens"])
            self.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        new = [token for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]
        if not new:
            return
        if self.tokens:
            self.gaps_s += [(now_s - self.last_s) / len(new)] * len(new)
        else:
            self.first_s = now_s
        self.tokens += new
        self.last_s = now_s


def session() -> aiohttp.ClientSession:
    """A session without a limit of connections: arrivals do not wait for answers."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), read_bufsize=_READ_BUFFER_BYTES, raise_for_status=False
    )


def body(model: str, prompt: Sequence[int], *, output: int, salt: str) -> dict[str, Any]:
    """A greedy, streamed request for exactly `output` tokens. Only requests of one `salt` share cached KV."""
    return {
        "model": model,
        "prompt": list(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": output,
        "min_tokens": output,
        "ignore_eos": True,
        "return_token_ids": True,
        "cache_salt": salt,
    }


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    request: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> Answer:
    """Sends the request and reads the answer to its end.

    Raises:
        Refused: it was refused, broke off, or did not end in time.
    """
    answer = Answer(time.perf_counter())
    done = False
    try:
        async with http.post(
            f"{url}/v1/completions",
            json=request,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            if response.status != 200:
                raise Refused(f"{response.status}: {(await response.text())[:300]}")
            answer.headers = {name.lower(): value for name, value in response.headers.items()}
            async for line in response.content:
                now_s = time.perf_counter()
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    done = True
                else:
                    answer.take(json.loads(data), now_s)
    except TimeoutError:
        raise Refused(f"no whole answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise Refused(f"the answer broke off: {error}") from error
    if not done or not answer.tokens:
        raise Refused("the stream ended early" if not done else "the answer names no tokens")
    return answer


async def served_model(http: aiohttp.ClientSession, url: str) -> tuple[str, int]:
    """The model that the engine at `url` serves, and how many tokens of prompt and answer it takes.

    Raises:
        LiveError: it says neither; vLLM does.
    """
    told = await get_json(http, f"{url}/v1/models")
    try:
        first = told["data"][0]
        return str(first["id"]), int(first["max_model_len"])
    except (LookupError, TypeError, ValueError):
        raise LiveError(
            f"{url}/v1/models does not say which model is served and its max_model_len: is it a vLLM server?"
        ) from None


async def token_pool(http: aiohttp.ClientSession, url: str, model: str) -> list[int]:
    """Ids of ordinary tokens, from which prompts are drawn: those of a sentence.

    Raises:
        LiveError: the server has no `/tokenize`, or knows too few tokens.
    """
    async with http.post(f"{url}/tokenize", json={"model": model, "prompt": _ALPHABET}) as response:
        if response.status != 200:
            raise LiveError(
                f"{url}/tokenize answered {response.status}: prompts are made of its tokens, so it must have one"
            )
        pool = sorted(set((await response.json())["tokens"]))
    if len(pool) < 16:
        raise LiveError(f"{url}/tokenize knows only {len(pool)} tokens in a sentence")
    return pool
