"""What the engine counts. Written by the engine's thread, read by the server's: whole numbers, no lock needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from conserve_workers.tiny.scheduler import Job, Scheduler


@dataclass(slots=True)
class Counters:
    """Totals since the start, and the gauges of the last step."""

    running: int = 0
    waiting: int = 0
    fetching: int = 0
    leases: int = 0
    blocks_used: int = 0
    blocks_capacity: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_resident: int = 0
    prompt_tokens_fetched: int = 0
    prompt_tokens_recomputed: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    evictions: int = 0
    steps: int = 0
    handoffs_kept: int = 0
    handoffs_sent: int = 0
    handoffs_received: int = 0
    handoffs_expired: int = 0
    handoffs_refused: int = 0
    handoffs_failed: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Ended requests by finish reason."""

    def observe(self, scheduler: Scheduler, *, leases: int) -> None:
        """Take over what the scheduler and its pool count themselves."""
        pool = scheduler.pool
        self.running = len(scheduler.running)
        self.waiting = len(scheduler.waiting) + len(scheduler.fetching)
        self.fetching = len(scheduler.fetching)
        self.leases = leases
        self.blocks_used = pool.used
        self.blocks_capacity = pool.capacity
        self.prefix_queries = scheduler.queried_tokens
        self.prefix_hits = scheduler.hit_tokens
        self.preemptions = scheduler.preemptions
        self.evictions = pool.evictions

    def count_prompt(self, job: Job) -> None:
        """Count a prompt whose first answer token was generated, by where its keys and values came from."""
        prompt = len(job.request.prompt)
        self.prompt_tokens += prompt
        self.prompt_tokens_resident += job.local_hit
        self.prompt_tokens_fetched += job.fetched_tokens
        self.prompt_tokens_computed += prompt - job.local_hit - job.fetched_tokens
        if job.fetched_tokens:
            # The last prompt token, from which the first answer token follows.
            self.prompt_tokens_recomputed += 1
