"""What workers and door counted between two moments: prompt tokens by source, preemptions, joules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from conserve.demo.errors import DemoError
from conserve.demo.scrape import Samples, get_samples

from .errors import LiveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .engines import Worker

__all__ = ["Counted", "count", "fetched_tokens", "told_by"]

_BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"


@dataclass(frozen=True, slots=True)
class Counted:
    """Totals at one moment, or what was added between two."""

    computed_tokens: int
    """Prompt tokens that the workers computed."""
    generated_tokens: int
    preemptions: int
    joules: float
    """NaN without an energy counter."""

    def since(self, before: Counted) -> Counted:
        """What was added."""
        return Counted(
            self.computed_tokens - before.computed_tokens,
            self.generated_tokens - before.generated_tokens,
            self.preemptions - before.preemptions,
            self.joules - before.joules,
        )


async def count(http: aiohttp.ClientSession, door: str, workers: Sequence[Worker]) -> Counted:
    """Asks the door for joules, and each worker for the rest.

    Raises:
        LiveError: a worker does not answer, or does not count prompt tokens by their source.
    """
    told = [await told_by(http, worker) for worker in workers]
    meter = await get_samples(http, door)
    has_meter = meter.total("conserve_energy_counter_up") > 0
    return Counted(
        computed_tokens=sum(
            _by_source(page, worker, "local_compute") for page, worker in zip(told, workers, strict=True)
        ),
        generated_tokens=round(sum(page.total("vllm:generation_tokens_total") for page in told)),
        preemptions=round(sum(page.total("vllm:num_preemptions_total") for page in told)),
        joules=meter.total("conserve_energy_counter_joules_total") if has_meter else math.nan,
    )


async def fetched_tokens(http: aiohttp.ClientSession, worker: Worker) -> int:
    """Prompt tokens whose KV the worker had from others.

    Raises:
        LiveError: it does not answer, or does not say.
    """
    return _by_source(await told_by(http, worker), worker, "external_kv_transfer")


async def told_by(http: aiohttp.ClientSession, worker: Worker) -> Samples:
    """The metrics of one worker.

    Raises:
        LiveError: it does not answer.
    """
    try:
        return await get_samples(http, worker.url)
    except (DemoError, OSError, aiohttp.ClientError) as error:
        raise LiveError(
            f"{worker.name} at {worker.url} does not answer: {str(error) or 'too slow'}"
        ) from error


def _by_source(page: Samples, worker: Worker, source: str) -> int:
    if not any(name == _BY_SOURCE for name, _, _ in page.rows):
        raise LiveError(
            f"{worker.name} at {worker.url} does not count prompt tokens by their source ({_BY_SOURCE}): "
            "it takes a newer vLLM, or one without --disable-log-stats"
        )
    return round(page.total(_BY_SOURCE, source=source))
