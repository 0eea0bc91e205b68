"""What the engines take for a step, measured from outside: the constants that the simulator needs of them.

Each number is a median. A prompt's time is that of one step, so prompts are no longer than a step takes. The round trip of a
request that computes nothing is taken off. Engines that share a machine slow each other down, which the simulator does not
model: `busy` says by how much, with every engine decoding at once.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from conserve.demo.scrape import get_json, get_samples

from .client import Refused, ask, body
from .errors import LiveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .run import Site

__all__ = ["Measured", "probe"]

_REPEATS: Final = 5
_DECODE_TOKENS: Final = 24
_BATCHES: Final = (1, 2, 4, 8)
_TIMEOUT_S: Final = 600.0
_HANDOFF: Final = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of steps on one engine, and of a handoff between two; `None` where no prefiller hands over."""

    round_trip_s: float
    decode_batch: tuple[int, ...]
    decode_context: tuple[int, ...]
    decode_s: tuple[tuple[float, ...], ...]
    """By batch, then context."""
    prefill_new: tuple[int, ...]
    prefill_past: tuple[int, ...]
    prefill_s: tuple[tuple[float, ...], ...]
    """By new tokens, then tokens before them."""
    handoff_latency_s: float | None
    handoff_tokens_per_s: float | None
    busy: float
    """How much longer a decode step takes while all engines decode."""
    kv_tokens: tuple[int, ...]
    """Of each worker."""
    block_size: int
    chunk_tokens: int


async def probe(site: Site, *, longest: int, chunk_tokens: int) -> Measured:
    """Asks the engines, which nobody else uses meanwhile. `longest`: the longest context of the workload.

    Raises:
        LiveError: an engine refuses, or does not say how much KV it holds.
    """
    try:
        return await _probe(site, longest=longest, chunk_tokens=chunk_tokens)
    except Refused as refused:
        raise LiveError(f"the engines cannot be measured: {refused}") from refused


async def _probe(site: Site, *, longest: int, chunk_tokens: int) -> Measured:
    url = site.engines.workers[0].url
    round_trip_s = await _round_trip_s(site, url)
    room = site.context_limit - _DECODE_TOKENS - 1
    longest = min(longest, room)
    most_new = min(chunk_tokens, max(32, longest // 2))
    new = (max(2, most_new // 8), max(4, most_new // 2), most_new)
    past = tuple(dict.fromkeys((0, (longest - most_new) // 2, longest - most_new)))
    if past[-1] <= 0:
        past = (0, most_new)
    contexts = (max(16, longest // 8), max(32, longest))
    prefill = [
        [await _prefill_s(site, url, count, before) - round_trip_s for before in past] for count in new
    ]
    decode = [[await _decode_s(site, [url], batch, context) for context in contexts] for batch in _BATCHES]
    urls = [worker.url for worker in site.engines.workers]
    busy = await _decode_s(site, urls, 2, contexts[-1]) / decode[1][-1] if len(urls) > 1 else 1.0
    latency_s, tokens_per_s = await _handoff(site, longest, round_trip_s)
    capacity = [await _capacity(site, each) for each in urls]
    return Measured(
        round_trip_s=round_trip_s,
        decode_batch=_BATCHES,
        decode_context=contexts,
        decode_s=tuple(map(tuple, decode)),
        prefill_new=new,
        prefill_past=past,
        prefill_s=tuple(tuple(max(1e-6, value) for value in row) for row in prefill),
        handoff_latency_s=latency_s,
        handoff_tokens_per_s=tokens_per_s,
        busy=busy,
        kv_tokens=tuple(blocks * size for blocks, size in capacity),
        block_size=capacity[0][1],
        chunk_tokens=chunk_tokens,
    )


async def _round_trip_s(site: Site, url: str) -> float:
    took = []
    for _ in range(4 * _REPEATS):
        began = time.perf_counter()
        await get_json(site.http, f"{url}/v1/models")
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def _prefill_s(site: Site, url: str, new: int, past: int) -> float:
    """Time to the first token of a prompt of which `past` tokens are resident."""
    took = []
    for _ in range(_REPEATS):
        salt = uuid.uuid4().hex
        if past:
            await ask(
                site.http,
                url,
                body(site.model, _prompt(site, past), output=1, salt=salt),
                timeout_s=_TIMEOUT_S,
            )
        request = body(site.model, _prompt(site, past + new), output=1, salt=salt)
        answer = await ask(site.http, url, request, timeout_s=_TIMEOUT_S)
        took.append(answer.first_s - answer.sent_s)
    return statistics.median(took)


async def _decode_s(site: Site, urls: Sequence[str], batch: int, context: int) -> float:
    """The step of `batch` sequences on each of `urls` at once: gaps between tokens while all of them run."""
    salt = uuid.uuid4().hex
    prompt = _prompt(site, context)
    # One prompt for all: it is computed once, and what is measured is steps without prompts.
    await asyncio.gather(
        *(
            ask(site.http, url, body(site.model, prompt, output=1, salt=salt), timeout_s=_TIMEOUT_S)
            for url in urls
        )
    )
    request = body(site.model, prompt, output=_DECODE_TOKENS, salt=salt)
    answers = await asyncio.gather(
        *(ask(site.http, url, request, timeout_s=_TIMEOUT_S) for url in urls for _ in range(batch))
    )
    # The first tokens are made while others still join.
    return statistics.median(gap for answer in answers for gap in answer.gaps_s[_DECODE_TOKENS // 4 :])


async def _handoff(site: Site, longest: int, round_trip_s: float) -> tuple[float | None, float | None]:
    """Latency and rate of a handoff, as the decoder's time to its first token grows with the prompt."""
    workers = site.engines.workers
    if len(workers) < 2 or "nixl" not in site.engines.connector:
        return None, None
    giver, taker = workers[0].url, workers[-1].url
    sizes = (max(16, longest // 4), max(32, longest))
    took = []
    for size in sizes:
        each = []
        for _ in range(_REPEATS):
            salt, prompt = uuid.uuid4().hex, _prompt(site, size)
            asked = body(site.model, prompt, output=1, salt=salt)
            params = await _prefilled(site, giver, asked)
            answer = await ask(
                site.http, taker, {**asked, "kv_transfer_params": params}, timeout_s=_TIMEOUT_S
            )
            each.append(answer.first_s - answer.sent_s)
        took.append(statistics.median(each))
    rate = (sizes[1] - sizes[0]) / max(1e-9, took[1] - took[0])
    # What is left at no tokens is the latency; the decoder's own first step is in it, and the simulator adds one.
    return max(1e-4, took[0] - sizes[0] / rate - round_trip_s), rate


async def _prefilled(site: Site, url: str, asked: dict[str, object]) -> object:
    request = {key: value for key, value in asked.items() if key not in ("stream", "stream_options")} | {
        "kv_transfer_params": _HANDOFF
    }
    async with site.http.post(
        f"{url}/v1/completions", json=request, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
    ) as response:
        if response.status != 200:
            raise Refused(f"{response.status}: {(await response.text())[:300]}")
        return (await response.json())["kv_transfer_params"]


async def _capacity(site: Site, url: str) -> tuple[int, int]:
    """Blocks and their size."""
    for name, labels, _value in (await get_samples(site.http, url)).rows:
        if name == "vllm:cache_config_info":
            return int(labels["num_gpu_blocks"]) - 1, int(labels["block_size"])
    raise LiveError(f"{url}/metrics does not say how much KV there is (vllm:cache_config_info)")


def _prompt(site: Site, count: int) -> list[int]:
    return (site.pool * (count // len(site.pool) + 1))[:count]
