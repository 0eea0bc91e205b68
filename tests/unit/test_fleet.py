"""Workers: how they are described, join, report and leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conserve import ConfigError, Decoder, ManualClock, NoWorkers, Prefiller, Rejected, Router, Worker

MakeRouter = Callable[..., Router]


def test_workers_are_values() -> None:
    assert Prefiller("http://p0:8000", name="p0") == Prefiller("http://p0:8000", name="p0")
    assert Prefiller("http://p0:8000") != Prefiller("http://p1:8000")
    assert len({Decoder("http://d0:8000", kv_blocks=1), Decoder("http://d0:8000", kv_blocks=1)}) == 1
    assert Decoder("http://w:1", kv_blocks=1) != Worker("http://w:1", kv_blocks=1)


@pytest.mark.parametrize(
    "worker",
    [
        Prefiller("http://p0:8000"),
        Prefiller("http://p0:8000", name="p0", tier="h200", max_model_len=8192, prefill_backlog_tokens=1000),
        Decoder("http://d0:8000"),
        Decoder(
            "http://d0:8000", kv_blocks=40_000, block_size=32, name="it's", tier="l40", max_model_len=4096
        ),
        Worker("http://w0:8000", kv_blocks=1, block_size=16, name="w0", prefill_backlog_tokens=7),
    ],
)
def test_repr_can_be_typed_back(worker: Prefiller | Decoder | Worker) -> None:
    assert eval(repr(worker)) == worker


def test_a_url_alone_is_no_worker_and_hears_what_is() -> None:
    said = r"a worker is Decoder\(url\), Prefiller\(url\) or Worker\(url\), not 'http://d0:8000'"
    with pytest.raises(TypeError, match=said):
        Router(decoders=["http://d0:8000"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=said):
        Router().join("http://d0:8000")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: Decoder("http://d0:8000", kv_blocks=-1), "kv_blocks"),
        (lambda: Decoder("http://d0:8000", kv_blocks=1 << 24), "kv_blocks"),
        (lambda: Decoder("http://d0:8000", block_size=0), "block_size"),
        (lambda: Prefiller("http://p0:8000", prefill_backlog_tokens=-1), "prefill_backlog_tokens"),
        (lambda: Router(low_watermark=0.0), "low_watermark"),
        (lambda: Router(low_watermark=1.5), "low_watermark"),
        (lambda: Router(low_watermark=float("nan")), "low_watermark"),
        (lambda: Router(queue_timeout_s=-1.0), "queue_timeout_s"),
        (lambda: Router(queue_timeout_s=float("inf")), "queue_timeout_s"),
        (lambda: Router(idle_timeout_s=float("nan")), "idle_timeout_s"),
        (lambda: Router(block_size=0), "block_size"),
        (lambda: Router(policy="best"), "policy"),  # type: ignore[arg-type]
        (lambda: Router(secret=b"short"), "secret"),
        (lambda: Router(prefill_backlog_tokens=-5), "prefill_backlog_tokens"),
        (
            lambda: Router(decoders=[Decoder("http://d0", kv_blocks=1)]).turn("t", prompt_tokens=-1),
            "prompt_tokens",
        ),
        (
            lambda: Router(decoders=[Decoder("http://d0", kv_blocks=1)]).turn("t", prompt_tokens=1 << 40),
            "prompt_tokens",
        ),
        (
            lambda: Router(decoders=[Decoder("http://d0", kv_blocks=1)]).turn(
                "t", prompt_tokens=1, timeout_s=-1
            ),
            "timeout_s",
        ),
    ],
)
def test_bad_option_is_named_with_its_range(build: Callable[[], object], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build()
    assert refused.value.key == key
    assert key in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_decoder_of_unknown_size_takes_turns_once_it_reports(make_router: MakeRouter) -> None:
    router = make_router(decoders=0)
    worker = router.join(Decoder("http://d0:8000", name="d0"))
    with pytest.raises(Rejected), router.turn("task-42", prompt_tokens=16):
        pytest.fail("its capacity is unknown")
    router.observe(worker, kv_blocks=100, block_size=16)
    with router.turn("task-42", prompt_tokens=16) as turn:
        assert turn.route.decoder_id == worker
    assert router.snapshot().workers[-1].kv_blocks == 100


def test_prometheus_page_reports_the_size(make_router: MakeRouter) -> None:
    router = make_router(decoders=0)
    router.join(Decoder("http://d0:8000", name="d0"))
    page = b"""\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="250"} 1.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""
    router.observe_metrics("d0", page)
    view = next(w for w in router.snapshot().workers if w.name == "d0")
    assert view.kv_blocks == 249, "one of them is the null block"


def test_ids_are_never_used_again(make_router: MakeRouter) -> None:
    router = make_router()
    first = router.join(Decoder("http://d1:8000", kv_blocks=10, name="d1"))
    router.lose(first, reason="restarted")
    second = router.join(Decoder("http://d1:8000", kv_blocks=10, name="d1"))
    assert second > first
    router.drain("d1")
    view = next(w for w in router.snapshot().workers if w.name == "d1")
    assert (view.id, view.draining) == (second, True), "a name means the worker that joined last"


def test_unknown_worker_is_a_key_error(make_router: MakeRouter) -> None:
    router = make_router()
    with pytest.raises(KeyError, match="d9"):
        router.drain("d9")
    with pytest.raises(KeyError, match="77"):
        router.lose(77)


def test_suspect_decoder_gets_no_new_conversations(make_router: MakeRouter) -> None:
    router = make_router(decoders=2)
    router.suspect("d0", True)
    for n in range(4):
        with router.turn(f"task-{n}", prompt_tokens=16) as turn:
            assert turn.route.decoder_name == "d1"
    router.suspect("d0", False)
    with router.turn("task-9", prompt_tokens=16) as turn:
        assert turn.route.decoder_name == "d0"


def test_drained_fleet_refuses_newcomers(make_router: MakeRouter) -> None:
    router = make_router()
    router.drain("d0")
    with pytest.raises(Rejected) as refused, router.turn("task-42", prompt_tokens=16):
        pytest.fail("the only decoder is draining")
    assert refused.value.status == 503
    router.undrain("d0")
    with router.turn("task-42", prompt_tokens=16):
        pass


def test_worker_that_is_both_serves_alone() -> None:
    router = Router(decoders=[Worker("http://w0:8000", kv_blocks=100, name="w0")])
    with router.turn("task-42", prompt_tokens=160) as turn:
        assert turn.route.decoder == "http://w0:8000"
        assert turn.route.handoff is False, "it has the KV already"
    assert router.snapshot().workers[0].role == "both"


def test_lost_fleet_has_no_workers(make_router: MakeRouter) -> None:
    router = make_router()
    router.lose("d0")
    with pytest.raises(NoWorkers), router.turn("task-42", prompt_tokens=16):
        pytest.fail("no decoder left")


def test_snapshot_tells_the_fleet(make_router: MakeRouter) -> None:
    router = make_router(decoders=2)
    for n in range(5):
        with router.turn(f"task-{n}", prompt_tokens=160) as turn:
            turn.finish(output_tokens=0)
    snapshot = router.snapshot()
    assert snapshot.conversations == 5
    assert sum(w.booked_blocks for w in snapshot.workers) == 50
    assert [w.role for w in snapshot.workers] == ["prefiller", "decoder", "decoder"]


def test_metrics_are_prometheus_text(make_router: MakeRouter) -> None:
    router = make_router()
    with router.turn("task-42", prompt_tokens=160) as turn:
        turn.finish(output_tokens=0)
    lines = [line for line in router.metrics().splitlines() if line]
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) > 20
    for line in samples:
        name, _, value = line.rpartition(" ")
        assert name.startswith("conserve_"), line
        float(value)
    assert len({line.rpartition(" ")[0] for line in samples}) == len(samples), "each series once"


def test_manual_clock_goes_forward_only(clock: ManualClock) -> None:
    clock.advance(1.25)
    clock.advance(0)
    assert clock.now_s == 1.25
    for backwards in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            clock.advance(backwards)
    assert ManualClock(5.0).now_s == 5.0
