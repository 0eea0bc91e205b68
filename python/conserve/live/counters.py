"""What workers and door counted between two moments: prompt tokens by source, preemptions, joules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conserve.demo.scrape import get_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    import aiohttp

    from .engines import Worker

__all__ = ["Counted", "count"]


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
    """Asks the door for joules, and each worker for the rest."""
    told = [await get_samples(http, worker.url) for worker in workers]
    meter = await get_samples(http, door)
    has_meter = meter.total("conserve_energy_counter_up") > 0
    return Counted(
        computed_tokens=round(
            sum(page.total("vllm:prompt_tokens_by_source_total", source="local_compute") for page in told)
        ),
        generated_tokens=round(sum(page.total("vllm:generation_tokens_total") for page in told)),
        preemptions=round(sum(page.total("vllm:num_preemptions_total") for page in told)),
        joules=meter.total("conserve_energy_counter_joules_total") if has_meter else math.nan,
    )
