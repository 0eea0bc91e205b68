"""What the engines take for a step, measured from outside: the constants that the simulator needs of them.

Each number is a median. A prompt's time is that of one step, so prompts are no longer than a step takes. The round trip of a
request that computes nothing is taken off. One worker of each kind is measured. Engines that share a machine slow each other
down, which the simulator does not model: `busy` says by how much, with every engine decoding at once.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conserve.demo.scrape import get_json, get_samples

from .client import Refused, ask, body
from .errors import LiveError
from .handoff import hand_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .engines import Worker
    from .handoff import Pair
    from .run import Site

__all__ = ["Measured", "Steps", "probe"]

_REPEATS: Final = 5
_DECODE_TOKENS: Final = 24
_BATCHES: Final = (1, 2, 4, 8)
_TIMEOUT_S: Final = 600.0
_CHUNK_TOKENS: Final = 2048
"""Of an engine that does not say: vLLM's usual budget."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of steps of one kind of engine."""

    workers: tuple[str, ...]
    """All of this kind; the first one was measured."""
    chunk_tokens: int
    decode_batch: tuple[int, ...]
    decode_context: tuple[int, ...]
    decode_s: tuple[tuple[float, ...], ...]
    """By batch, then context."""
    prefill_new: tuple[int, ...]
    prefill_past: tuple[int, ...]
    prefill_s: tuple[tuple[float, ...], ...]
    """By new tokens, then tokens before them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All constants; those of a handoff are `None` where none was measured."""

    round_trip_s: float
    steps: tuple[Steps, ...]
    """One for each kind of engine."""
    handoff_latency_s: float | None
    handoff_tokens_per_s: float | None
    """`None` too if a longer prompt took no longer."""
    busy: float
    """How much longer a decode step takes while all engines decode."""
    kv_tokens: tuple[int, ...]
    """Of each worker."""
    block_size: int

    def of(self, worker: str) -> Steps:
        """Those of the worker's kind."""
        return next(steps for steps in self.steps if worker in steps.workers)


async def probe(site: Site, *, longest: int, chunk_tokens: int | None, handoffs: Sequence[Pair]) -> Measured:
    """Asks the engines, which nobody else uses meanwhile.

    `longest` is the longest context of the workload, `chunk_tokens` the budget of a step where the engines' own is not known or
    not to be believed, `handoffs` who may hand over to whom.

    Raises:
        LiveError: an engine refuses, or does not say how much KV it holds.
    """
    try:
        return await _probe(site, longest=longest, chunk_tokens=chunk_tokens, handoffs=handoffs)
    except Refused as refused:
        raise LiveError(f"the engines cannot be measured: {refused}") from refused


async def _probe(site: Site, *, longest: int, chunk_tokens: int | None, handoffs: Sequence[Pair]) -> Measured:
    workers = site.engines.workers
    longest = min(longest, site.context_limit - _DECODE_TOKENS - 1)
    capacity = [await _capacity(site, worker.url) for worker in workers]
    round_trip_s = await _round_trip_s(site, workers[0].url)
    steps = []
    for kind in dict.fromkeys(worker.kind for worker in workers):
        alike = [worker for worker in workers if worker.kind == kind]
        budget = chunk_tokens or alike[0].chunk_tokens or _CHUNK_TOKENS
        steps.append(await _steps(site, alike, longest, budget, capacity[0][1], round_trip_s))
    first, context = steps[0].decode_s[1][-1], steps[0].decode_context[-1]
    urls = [worker.url for worker in workers]
    alone_s = first if len(steps) == 1 else await _decode_s(site, urls[:1], 2, context)
    busy = await _decode_s(site, urls, 2, context) / alone_s if len(urls) > 1 else 1.0
    latency_s, tokens_per_s = None, None
    if handoffs:
        latency_s, tokens_per_s = await _handoff(
            site, handoffs[0], longest, round_trip_s + steps[-1].decode_s[0][-1]
        )
    return Measured(
        round_trip_s=round_trip_s,
        steps=tuple(steps),
        handoff_latency_s=latency_s,
        handoff_tokens_per_s=tokens_per_s,
        busy=busy,
        kv_tokens=tuple(blocks * size for blocks, size in capacity),
        block_size=capacity[0][1],
    )


async def _steps(
    site: Site, alike: Sequence[Worker], longest: int, chunk_tokens: int, block_size: int, round_trip_s: float
) -> Steps:
    url = alike[0].url
    most_new = min(chunk_tokens, max(32, longest // 2))
    new = (max(2, most_new // 8), max(4, most_new // 2), most_new)
    # Whole blocks: what is beyond them would be computed again.
    spans = (
        (longest - most_new) // 2 // block_size * block_size,
        (longest - most_new) // block_size * block_size,
    )
    past = tuple(dict.fromkeys((0, *spans)))
    if past[-1] <= 0:
        past = (0, block_size)
    contexts = (max(16, longest // 8), max(32, longest))
    prefill = [
        [await _prefill_s(site, url, count, before) - round_trip_s for before in past] for count in new
    ]
    decode = [[await _decode_s(site, [url], batch, context) for context in contexts] for batch in _BATCHES]
    return Steps(
        workers=tuple(worker.name for worker in alike),
        chunk_tokens=chunk_tokens,
        decode_batch=_BATCHES,
        decode_context=contexts,
        decode_s=tuple(map(tuple, decode)),
        prefill_new=new,
        prefill_past=past,
        prefill_s=tuple(tuple(max(1e-6, value) for value in row) for row in prefill),
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


async def _handoff(site: Site, pair: Pair, longest: int, known_s: float) -> tuple[float, float | None]:
    """Latency and rate of a handoff, as the taker's time to its first token grows with the prompt.

    `known_s` is what is in that time too, and what the simulator adds by itself: the round trip and the taker's first step.
    """
    sizes = (max(16, longest // 4), max(32, longest))
    took = []
    for size in sizes:
        each = []
        for _ in range(_REPEATS):
            answer = await hand_over(site, pair, _prompt(site, size))
            each.append(answer.first_s - answer.sent_s)
        took.append(statistics.median(each))
    if took[1] <= took[0]:
        return max(1e-4, statistics.mean(took) - known_s), None
    rate = (sizes[1] - sizes[0]) / (took[1] - took[0])
    return max(1e-4, took[0] - sizes[0] / rate - known_s), rate


async def _capacity(site: Site, url: str) -> tuple[int, int]:
    """Blocks and their size."""
    for name, labels, _value in (await get_samples(site.http, url)).rows:
        if name == "vllm:cache_config_info":
            return int(labels["num_gpu_blocks"]) - 1, int(labels["block_size"])
    raise LiveError(f"{url}/metrics does not say how much KV there is (vllm:cache_config_info)")


def _prompt(site: Site, count: int) -> list[int]:
    return (site.pool * (count // len(site.pool) + 1))[:count]
