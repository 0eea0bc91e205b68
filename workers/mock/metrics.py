"""What a mock counts, and its `/metrics`, with vLLM's names."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .worker import MockWorker

Ended = Literal["stop", "length", "abort", "error"]


@dataclasses.dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens_by_source: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0}
    )
    generated_tokens: int = 0
    ended: dict[Ended, int] = dataclasses.field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )
    held_blocks: int = 0
    """Blocks of the prompts that are being answered now."""


def exposition(worker: MockWorker) -> bytes:
    """Prometheus text, as vLLM writes it: the block count includes the null block."""
    label = f'engine="0",model_name="{worker.model}"'
    total = worker.kv_blocks + 1
    config = f'block_size="{worker.block_size}",engine="0",num_gpu_blocks="{total}"'
    size = f'kv_cache_size_tokens="{worker.kv_blocks * worker.block_size}"'
    counters = worker.counters
    sources = counters.prompt_tokens_by_source
    usage = min(1.0, counters.held_blocks / max(1, worker.kv_blocks))
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {worker.started_at_s:.6f}",
        "# TYPE vllm:cache_config_info gauge",
        f"vllm:cache_config_info{{{config},{size}}} 1.0",
    ]
    for kind, name, value in (
        ("gauge", "num_requests_running", f"{worker.running}.0"),
        ("gauge", "num_requests_waiting", f"{worker.waiting}.0"),
        ("gauge", "kv_cache_usage_perc", f"{usage:.6f}"),
        ("counter", "prefix_cache_queries_total", f"{sum(sources.values())}.0"),
        ("counter", "prefix_cache_hits_total", f"{sources['local_cache_hit']}.0"),
        ("counter", "num_preemptions_total", "0.0"),
        ("counter", "prompt_tokens_total", f"{sum(sources.values())}.0"),
        ("counter", "generation_tokens_total", f"{counters.generated_tokens}.0"),
    ):
        lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{label}}} {value}"]
    lines.append("# TYPE vllm:prompt_tokens_by_source_total counter")
    for source, count in sources.items():
        lines.append(f'vllm:prompt_tokens_by_source_total{{{label},source="{source}"}} {count}.0')
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, count in counters.ended.items():
        lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count}.0')
    return "\n".join([*lines, ""]).encode()
