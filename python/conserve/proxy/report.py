"""What the watch itself reads from a worker's Prometheus page; the router parses the rest."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

__all__ = ["Report"]

_START: Final = re.compile(rb"^process_start_time_seconds(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)
_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL: Final = re.compile(rb'(block_size|num_gpu_blocks)="([0-9]{1,18})"')


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """One account of a worker; None where it does not say."""

    started_at_s: float | None = None
    kv_blocks: int | None = None
    block_size: int | None = None

    @classmethod
    def read(cls, page: bytes) -> Report:
        """Read a Prometheus page; what is not there or not a number is None."""
        start = _START.search(page)
        cache = _CACHE.search(page)
        labels = dict(_LABEL.findall(cache[1])) if cache else {}
        blocks, size = labels.get(b"num_gpu_blocks"), labels.get(b"block_size")
        # One of them is the null block, which holds no token.
        usable = None if blocks is None else int(blocks) - 1
        try:
            started = None if start is None else float(start[1])
        except ValueError:
            started = None
        return cls(
            started,
            usable if usable is not None and usable > 0 else None,
            None if size is None else int(size),
        )

    def restarted(self, later: Report) -> bool:
        """Whether `later` comes from another process than this one."""
        return None not in (self.started_at_s, later.started_at_s) and self.started_at_s != later.started_at_s

    def describe(self, models: list[dict[str, Any]]) -> str:
        """One line for the log."""
        capacity = (
            f"{self.kv_blocks} blocks of {self.block_size} tokens"
            if self.kv_blocks
            else "no KV capacity told"
        )
        names = (
            ", ".join(f"{card['id']} ({card.get('max_model_len')} tokens)" for card in models) or "no model"
        )
        return f"{capacity}; {names}"
