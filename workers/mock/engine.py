"""The mock's idea of a model: a prefix cache, deterministic text, handoff parameters.

The text depends only on the prompt, so that two workers given the same prompt answer alike.
Handoff parameters carry a signature that any mock can check: a decoder knows that they came from a mock's prefill, that
nobody pulled them before (on this decoder), and how old they are.
"""

from __future__ import annotations

import hashlib
import itertools
import time
import uuid
from typing import Any

from .prompt import TOKEN_BYTES

BLOCK_TOKENS = 16
_BLOCK_BYTES = TOKEN_BYTES * BLOCK_TOKENS


class PrefixCache:
    """Chained hashes of whole blocks, as an engine's prefix cache."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    def resident(self, prompt: bytes, salt: str) -> int:
        """Tokens of `prompt` that lie in cached whole blocks."""
        count = 0
        for block in _chain(prompt, salt):
            if block not in self._blocks:
                break
            count += 1
        return count * BLOCK_TOKENS

    def add(self, text: bytes, salt: str) -> None:
        """Keep every whole block of `text`."""
        self._blocks.update(_chain(text, salt))


def _chain(text: bytes, salt: str) -> list[int]:
    found, previous = [], hash(salt)
    for start in range(0, len(text) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        previous = hash((previous, text[start : start + _BLOCK_BYTES]))
        found.append(previous)
    return found


class Handoff:
    """Issues handoff parameters as a prefiller, redeems them as a decoder."""

    def __init__(self, *, lease_s: float) -> None:
        self._engine_id = str(uuid.uuid4())
        self._serial = itertools.count(1)
        self._pulled: set[str] = set()
        self._lease_s = lease_s

    def issue(self, prompt_tokens: int, port: int) -> dict[str, Any]:
        """The `kv_transfer_params` of a prefill answer, in the shape of vLLM's NIXL connector."""
        serial, issued = next(self._serial), time.time_ns()
        seal = _seal(self._engine_id, port, serial, issued, prompt_tokens)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-prompt_tokens // BLOCK_TOKENS)))],
            "remote_engine_id": self._engine_id,
            "remote_request_id": f"{serial}-{issued}-{seal}",
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "remote_num_tokens": prompt_tokens,
            "tp_size": 1,
        }

    def redeem(self, params: object) -> tuple[int, bool]:
        """Tokens transferred and whether the lease had ended; raises ValueError for parameters no mock issued."""
        if not isinstance(params, dict):
            raise ValueError("kv_transfer_params is not an object")  # noqa: TRY004
        try:
            engine, ticket = params["remote_engine_id"], params["remote_request_id"]
            count, port = params["remote_num_tokens"], params["remote_port"]
            serial, issued, seal = ticket.split("-")
            wanted = _seal(engine, port, int(serial), int(issued), count)
            genuine = seal == wanted and params["do_remote_prefill"] is True
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"malformed kv_transfer_params: {error!r}") from error
        if not genuine:
            raise ValueError("kv_transfer_params that no prefill issued")
        if ticket in self._pulled:
            raise ValueError("kv_transfer_params already pulled")
        self._pulled.add(ticket)
        return count, (time.time_ns() - int(issued)) / 1e9 > self._lease_s


def _seal(engine: str, port: int, serial: int, issued: int, count: int) -> str:
    return hashlib.sha256(f"mock:{engine}:{port}:{serial}:{issued}:{count}".encode()).hexdigest()[:16]


def answer_words(prompt: bytes, count: int, *, size: int | None = None, seed: int | None = None) -> list[str]:
    """`count` words that follow from the prompt and, for a sampled answer, the seed; `size` characters each, else a token."""
    drawn = b"" if seed is None else b"%d" % seed
    # A prompt of token ids has zeroes behind its last text.
    stem = hashlib.sha256(prompt.rstrip(b"\0") + drawn).hexdigest()
    if size is not None:
        return [f"{stem[index % 64]}".ljust(size, "x") for index in range(count)]
    return [f"{stem[index % 64]}{index % 100:02d} " for index in range(count)]


def until(words: list[str], stops: tuple[str, ...]) -> tuple[list[str], bool]:
    """The words up to the first of `stops`, and whether there was one."""
    text = "".join(words)
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return words, False
    left, kept = min(found), []
    for word in words:
        if left <= 0:
            break
        kept.append(word[:left])
        left -= len(word)
    return kept, True
