"""A worker's wishes -> vLLM's command line and environment; a pure function, nothing is started or looked up.

Promises: what the router relies on is always there: prefix caching, prompt token details, a connector whose role fits,
a side channel of the worker's own. Leaves to others: whether ports and GPUs are free, and starting the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .connectors import CONNECTORS, Connector, fill
from .presets import LARGEST_CHUNK, PRESETS, Preset, Role, StepTime

# vLLM's names. A prefiller produces KV and a decoder consumes it; one that does both is told so.
_KV_ROLES: Final[Mapping[Role, str]] = {
    "prefiller": "kv_producer",
    "decoder": "kv_consumer",
    "both": "kv_both",
}
# vLLM's own lease of KV that waits at a prefiller.
_LEASE_S: Final = 30


@dataclass(frozen=True, slots=True)
class VllmWorker:
    """One vLLM server. `gpus` are device indices, as many as tensor-parallel ranks; empty on a CPU.

    `handoff_port` is the connector's own port (NIXL's side channel, Mooncake's bootstrap server), `handoff_folder` the
    folder of one that hands files over, `engine_id` what the transfer layer calls the worker, `retention_ttl_s` how long a decoder
    keeps the KV of a turn that ended from eviction (None: not at all), `connector_extra` what else its extra config says. `events_port` turns KV events
    on, `replay_port` lets who missed some have them again. `tbt_target_ms` is how long a step with a chunk of a prompt in it may take;
    `decode_step_ms` and `prompt_ms_per_token` are what was measured, in place of the preset's. Sizes are in tokens or bytes. `flags` come last, so that they win over a preset; in them and in `env`, `{host}`,
    `{handoff_port}`, `{handoff_folder}` and `{engine_id}` are filled in.
    """

    role: Role
    model: str
    port: int
    preset: str
    host: str = "127.0.0.1"
    served_model_name: str | None = None
    connector: Connector = "nixl"
    handoff_port: int | None = None
    handoff_folder: str | None = None
    engine_id: str | None = None
    retention_ttl_s: int | None = None
    connector_extra: Mapping[str, object] = field(default_factory=dict)
    events_port: int | None = None
    replay_port: int | None = None
    gpus: tuple[int, ...] = ()
    block_size: int | None = None
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    tbt_target_ms: float | None = None
    decode_step_ms: float | None = None
    prompt_ms_per_token: float | None = None
    command: tuple[str, ...] = ("vllm",)
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def argv(worker: VllmWorker) -> tuple[str, ...]:
    """The command line. Raises ValueError for a preset or connector that there is not."""
    preset = _preset(worker)
    given = [*worker.command, "serve", worker.model, "--host", worker.host, "--port", str(worker.port)]
    if worker.served_model_name is not None:
        given += ["--served-model-name", worker.served_model_name]
    given += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    given += _numbers(worker, preset)
    given += preset.flags
    if worker.connector != "none":
        given += ["--kv-transfer-config", json.dumps(_transfer(worker, preset), separators=(",", ":"))]
    if worker.events_port is not None:
        events: dict[str, object] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # vLLM listens at wildcards only; to any other address it would connect.
            "endpoint": f"tcp://*:{worker.events_port}",
            "topic": f"kv@{worker.port}",
        }
        if worker.replay_port is not None:
            events["replay_endpoint"] = f"tcp://*:{worker.replay_port}"
        given += ["--kv-events-config", json.dumps(events, separators=(",", ":"))]
    return (*given, *(fill(flag, _blanks(worker)) for flag in worker.flags))


def environment(worker: VllmWorker) -> dict[str, str]:
    """What is added to the environment; the worker's own `env` wins."""
    preset = _preset(worker)
    made = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1", **preset.env}
    if preset.device == "cuda":
        made["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        made["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, worker.gpus))
    shape = {} if worker.connector == "none" else CONNECTORS[worker.connector].env
    blanks = _blanks(worker)
    return {**made, **{key: fill(value, blanks) for key, value in {**shape, **worker.env}.items()}}


def warnings(worker: VllmWorker) -> tuple[str, ...]:
    """What the worker's wishes ask for in vain."""
    if worker.tbt_target_ms is None:
        return ()
    why = _step(worker, _preset(worker)).why_not(worker.tbt_target_ms)
    return () if why is None else (f"tbt_target_ms = {worker.tbt_target_ms:g} cannot be kept: {why}",)


def _blanks(worker: VllmWorker) -> dict[str, object]:
    return {
        "host": worker.host,
        "handoff_port": worker.handoff_port,
        "handoff_folder": worker.handoff_folder,
        "engine_id": worker.engine_id,
    }


def _preset(worker: VllmWorker) -> Preset:
    try:
        return PRESETS[worker.preset]
    except KeyError:
        raise ValueError(f"preset: one of {', '.join(PRESETS)}, not {worker.preset!r}") from None


def _numbers(worker: VllmWorker, preset: Preset) -> list[str]:
    kv_cache_bytes = worker.kv_cache_bytes or preset.kv_cache_bytes
    utilization = None if kv_cache_bytes is not None else preset.memory_utilization
    ranks = len(worker.gpus) if len(worker.gpus) > 1 else None
    options = {
        "--max-model-len": worker.max_model_len,
        "--block-size": worker.block_size,
        "--max-num-batched-tokens": _chunk_tokens(worker, preset),
        "--kv-cache-memory-bytes": kv_cache_bytes,
        "--gpu-memory-utilization": utilization,
        "--tensor-parallel-size": ranks,
    }
    return [word for key, value in options.items() if value is not None for word in (key, str(value))]


def _chunk_tokens(worker: VllmWorker, preset: Preset) -> int | None:
    """The budget of one step. With a target it grows with that up to the budget of a prefiller."""
    if worker.tbt_target_ms is None:
        return preset.chunk_tokens(worker.role)
    most = preset.prefiller_chunk_tokens or LARGEST_CHUNK
    return _step(worker, preset).chunk_tokens(worker.tbt_target_ms, most=most)


def _step(worker: VllmWorker, preset: Preset) -> StepTime:
    """What a step takes: as measured, else as the preset says."""
    decode_ms, prompt_ms = worker.decode_step_ms, worker.prompt_ms_per_token
    if decode_ms is not None and prompt_ms is not None:
        return StepTime(decode_ms, prompt_ms)
    if preset.step is None:
        raise ValueError(
            f"tbt_target_ms: takes decode_step_ms and prompt_ms_per_token too, because preset {worker.preset!r} has none"
        )
    return StepTime(
        preset.step.decode_ms if decode_ms is None else decode_ms,
        preset.step.prompt_ms_per_token if prompt_ms is None else prompt_ms,
    )


def _transfer(worker: VllmWorker, preset: Preset) -> dict[str, object]:
    if worker.connector not in CONNECTORS:
        raise ValueError(f"connector: one of {', '.join(CONNECTORS)}, none, not {worker.connector!r}")
    shape, blanks = CONNECTORS[worker.connector], _blanks(worker)
    config: dict[str, object] = {
        "kv_connector": shape.name,
        "kv_role": _KV_ROLES[worker.role],
        "kv_buffer_device": preset.device,
        # A pull that fails is an error that the router answers by prefilling again, never a silent recompute.
        "kv_load_failure_policy": "fail",
    }
    config |= {key: fill(value, blanks) for key, value in shape.config.items()}
    extra: dict[str, object] = {key: fill(value, blanks) for key, value in shape.extra.items()}
    if preset.device == "cpu":
        extra |= shape.cpu_extra
    if worker.retention_ttl_s is not None:
        extra |= _retaining(worker, worker.retention_ttl_s)
    extra |= worker.connector_extra
    if extra:
        config["kv_connector_extra_config"] = extra
    return config


def _retaining(worker: VllmWorker, ttl_s: int) -> dict[str, object]:
    """NIXL's extra config under which a decoder keeps turns that ended. Raises ValueError for a connector that cannot.

    vLLM 0.32 keeps a turn whose KV was fetched for `decoder_kv_blocks_ttl`, and a later one, which the router marks as KV to be
    fetched, for `kv_lease_duration`. A decoder renews the leases of prefillers that it waits for at each sixth of its own
    `kv_lease_duration`, by two thirds of theirs: so theirs must not be short beside it.
    """
    if worker.connector != "nixl":
        raise ValueError(f"retention_ttl_s: connector nixl keeps turns, {worker.connector} does not")
    if worker.role == "prefiller":
        return {"kv_lease_duration": max(_LEASE_S, ttl_s // 3)}
    return {
        "bidirectional_kv_xfer": True,
        "decoder_kv_blocks_ttl": ttl_s,
        "kv_lease_duration": ttl_s,
    }
