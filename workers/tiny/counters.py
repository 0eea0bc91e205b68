"""What the engine counts. Written by the engine's thread, read by the server's: whole numbers, no lock needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
