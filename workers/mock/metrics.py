"""The mock's `/metrics`, with vLLM's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .worker import MockWorker


def exposition(worker: MockWorker) -> bytes:
    """Prometheus text, as vLLM writes it: the block count includes the null block."""
    label = f'engine="0",model_name="{worker.model}"'
    total = worker.kv_blocks + 1
    config = f'block_size="{worker.block_size}",engine="0",num_gpu_blocks="{total}"'
    size = f'kv_cache_size_tokens="{worker.kv_blocks * worker.block_size}"'
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {worker.started_at_s:.6f}",
        "# TYPE vllm:cache_config_info gauge",
        f"vllm:cache_config_info{{{config},{size}}} 1.0",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{label}}} {worker.running}.0",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{label}}} {worker.waiting}.0",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f"vllm:kv_cache_usage_perc{{{label}}} {min(1.0, len(worker.cache) / max(1, worker.kv_blocks)):.6f}",
        "# TYPE vllm:prompt_tokens_by_source_total counter",
    ]
    for source, count in worker.prompt_tokens_by_source.items():
        lines.append(f'vllm:prompt_tokens_by_source_total{{{label},source="{source}"}} {count}.0')
    return "\n".join([*lines, ""]).encode()
