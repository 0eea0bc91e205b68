"""Counters as Prometheus text, under vLLM's names where vLLM has one."""

from __future__ import annotations

from collections.abc import Mapping

from conserve_workers.tiny.counters import Counters
from conserve_workers.tiny.options import Options

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = ("stop", "length", "abort", "error")


class _Page:
    def __init__(self, model: str) -> None:
        self._lines: list[str] = []
        self._labels = {"model_name": model, "engine": "0"}

    def family(
        self,
        name: str,
        kind: str,
        text: str,
        samples: Mapping[tuple[tuple[str, str], ...], float],
        *,
        plain: bool = False,
    ) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for labels, value in samples.items():
            pairs = dict(labels) if plain else {**self._labels, **dict(labels)}
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in pairs.items())
            self._lines.append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        self.family(name, kind, text, {(): value})

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def render(counters: Counters, options: Options, *, started_s: float, exact: bool) -> str:
    """The page; `started_s` is the process's start in Unix time, `exact` whether row results are independent."""
    page = _Page(options.model_name)
    config = {
        "block_size": str(options.block_size),
        "num_gpu_blocks": str(options.kv_blocks + 1),  # as vLLM counts: with its null block
        "kv_cache_size_tokens": str(counters.blocks_capacity * options.block_size),
        "enable_prefix_caching": "True",
    }
    page.family(
        "vllm:cache_config_info", "gauge", "KV cache; one block is the null block", {tuple(config.items()): 1}
    )
    page.one("vllm:num_requests_running", "gauge", "Requests being computed", counters.running)
    page.one(
        "vllm:num_requests_waiting",
        "gauge",
        "Requests in line, or waiting for their blocks",
        counters.waiting,
    )
    page.family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Requests waiting, by what they wait for",
        {
            (("reason", "capacity"),): counters.waiting - counters.fetching,
            (("reason", "deferred"),): counters.fetching,
        },
    )
    usage = counters.blocks_used / counters.blocks_capacity if counters.blocks_capacity else 0.0
    page.one("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1", usage)
    page.one("vllm:prompt_tokens_total", "counter", "Prompt tokens", counters.prompt_tokens)
    page.family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "Prompt tokens by where their keys and values came from",
        {
            (("source", "local_compute"),): counters.prompt_tokens_computed,
            (("source", "local_cache_hit"),): counters.prompt_tokens_resident,
            (("source", "external_kv_transfer"),): counters.prompt_tokens_fetched,
        },
    )
    for name, text, value in (
        (
            "vllm:prompt_tokens_cached_total",
            "Prompt tokens not computed",
            counters.prompt_tokens_resident + counters.prompt_tokens_fetched,
        ),
        (
            "vllm:prompt_tokens_recomputed_total",
            "Fetched prompt tokens computed once more, one for each fetch",
            counters.prompt_tokens_recomputed,
        ),
        ("vllm:generation_tokens_total", "Generated tokens", counters.generation_tokens),
        ("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache", counters.prefix_queries),
        ("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache", counters.prefix_hits),
        ("vllm:num_preemptions_total", "Requests that gave up their blocks", counters.preemptions),
    ):
        page.one(name, "counter", text, value)
    page.family(
        "vllm:request_success_total",
        "counter",
        "Ended requests",
        {(("finished_reason", reason),): counters.finished[reason] for reason in _REASONS},
    )
    for name, text, value in (
        ("handoffs_kept_total", "Prompts kept for another worker", counters.handoffs_kept),
        ("handoffs_sent_total", "Prompts fetched by another worker", counters.handoffs_sent),
        ("handoffs_received_total", "Prompts fetched from another worker", counters.handoffs_received),
        (
            "handoffs_expired_total",
            "Prompts given back unfetched when their lease ended",
            counters.handoffs_expired,
        ),
        ("handoffs_refused_total", "Fetches refused here", counters.handoffs_refused),
        ("handoffs_failed_total", "Fetches by this worker that failed", counters.handoffs_failed),
        ("handoff_bytes_sent_total", "Bytes of KV sent", counters.bytes_sent),
        ("handoff_bytes_received_total", "Bytes of KV received", counters.bytes_received),
        ("kv_blocks_evicted_total", "Cached blocks given up for new ones", counters.evictions),
        ("steps_total", "Forward passes", counters.steps),
    ):
        page.one(f"conserve_tiny:{name}", "counter", text, value)
    page.one("conserve_tiny:handoff_leases", "gauge", "Prompts kept for another worker now", counters.leases)
    page.one("conserve_tiny:kv_blocks_used", "gauge", "KV blocks in use", counters.blocks_used)
    page.one(
        "conserve_tiny:row_independent",
        "gauge",
        "1 when results do not depend on the batch, to the last bit",
        int(exact),
    )
    page.family(
        "process_start_time_seconds", "gauge", "Start of the process, Unix time", {(): started_s}, plain=True
    )
    return page.text()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
