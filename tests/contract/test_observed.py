"""What a router reads from a worker: health, models, metrics; and that a client who leaves costs nothing."""

from __future__ import annotations

import time

from tests.workers.harness import Worker

NAMES = {
    "vllm:cache_config_info",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_by_source_total{local_compute}",
    "vllm:prompt_tokens_by_source_total{local_cache_hit}",
    "vllm:prompt_tokens_by_source_total{external_kv_transfer}",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total{stop}",
    "vllm:request_success_total{length}",
    "vllm:request_success_total{abort}",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "process_start_time_seconds",
}


def test_ready_worker_is_healthy(worker: Worker) -> None:
    assert worker.send("GET", "/health")[0] == 200


def test_models_name_the_context_length(worker: Worker) -> None:
    body = worker.get("/v1/models").body
    assert body["object"] == "list"
    (model,) = body["data"]
    assert model["id"] == worker.model
    assert model["object"] == "model"
    assert model["max_model_len"] > 0


def test_metrics_have_the_names_a_router_reads(worker: Worker) -> None:
    assert set(worker.metrics()) >= NAMES


def test_metrics_say_the_size_of_the_kv_cache(worker: Worker) -> None:
    page = worker.send("GET", "/metrics")[1].decode()
    (line,) = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert 'num_gpu_blocks="' in line
    assert 'block_size="' in line


def test_metrics_count_tokens(worker: Worker) -> None:
    before = worker.metrics()
    usage = worker.complete("Some rivers are long", max_tokens=9).body["usage"]
    after = worker.metrics()

    def rise(name: str) -> float:
        return after[name] - before[name]

    assert rise("vllm:generation_tokens_total") == 9
    assert rise("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    by_source = sum(rise(f"vllm:prompt_tokens_by_source_total{{{source}}}") for source in sources)
    assert by_source == usage["prompt_tokens"]
    assert rise("vllm:request_success_total{length}") == 1


def test_start_time_is_that_of_the_process(worker: Worker) -> None:
    started = worker.metrics()["process_start_time_seconds"]
    assert time.time() - 3600 < started < time.time()
    assert worker.metrics()["process_start_time_seconds"] == started


def test_client_that_leaves_frees_its_request_and_blocks(worker: Worker) -> None:
    events = worker.stream("/v1/completions", prompt="abc " * 20, max_tokens=3000, min_tokens=3000)
    next(events)
    assert worker.metrics()["vllm:num_requests_running"] == 1
    before = worker.metrics()["vllm:generation_tokens_total"]
    events.close()  # type: ignore[attr-defined]
    worker.await_metric("vllm:num_requests_running", 0)
    generated = worker.metrics()["vllm:generation_tokens_total"] - before
    assert generated < 1500, "3,000 tokens were asked for"
    worker.await_metric("vllm:kv_cache_usage_perc", 0)


def test_client_that_leaves_an_unstreamed_request_frees_it_too(worker: Worker) -> None:
    connection = worker.connect()
    body = b'{"model": "%s", "prompt": "abc", "max_tokens": 3500, "min_tokens": 3500}' % worker.model.encode()
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    worker.await_metric("vllm:num_requests_running", 1)
    connection.close()
    worker.await_metric("vllm:num_requests_running", 0)
    worker.await_metric("vllm:kv_cache_usage_perc", 0)
