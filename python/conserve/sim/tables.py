"""Step times from the measured kernel tables of `aiconfigurator-core`, as the `grid` of a scenario's engine.

`pip install 'conserve-router[tables]'` brings the package. It knows kernels, no host: give the host's time as `cost.overhead_s`.
Tensor parallelism is in the tables, so this is the way to simulate it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol

from conserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PACKAGE", "grid"]

PACKAGE: Final = "aiconfigurator-core"
_MODULE: Final = "aiconfigurator_core.sdk.engine"
DECODE_BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DECODE_CONTEXT: Final = (128, 1024, 4096, 8192, 16384, 32768)
PREFILL_NEW: Final = (16, 128, 512, 1024, 2048, 4096, 8192)
PREFILL_PAST: Final = (0, 2048, 8192, 16384, 32768)


class Tables(Protocol):
    """What is asked of the package: milliseconds of a step."""

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float:
        """A prompt of `isl` tokens of which `prefix` are resident."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        """A step of `gen_tokens` sequences with `isl` tokens each."""


def grid(
    model: str,
    gpu: str,
    *,
    backend: str = "vllm",
    tensor_parallel: int = 1,
    decode_batch: Sequence[int] = DECODE_BATCH,
    decode_context: Sequence[int] = DECODE_CONTEXT,
    prefill_new: Sequence[int] = PREFILL_NEW,
    prefill_past: Sequence[int] = PREFILL_PAST,
) -> dict[str, object]:
    """The grid of `model` (such as `Qwen/Qwen3-8B`) on `gpu` (such as `l40s`, `a100_sxm`, `h200_sxm`).

    What a mixed step pays once although both tables contain it is taken to be the smallest decode step: reading the weights.

    Raises:
        ConfigError: the package is not installed, or has no tables for this.
    """
    tables = _tables(model, gpu, backend, tensor_parallel)
    try:
        decode_s = [
            [tables.decode_step_latency(batch, context, 2) / 1e3 for context in decode_context]
            for batch in decode_batch
        ]
        prefill_s = [
            [tables.predict_prefill_latency(1, past + new, past) / 1e3 for past in prefill_past]
            for new in prefill_new
        ]
    except (ValueError, RuntimeError) as cause:
        raise ConfigError(f"{PACKAGE} has no step times for {model} on {gpu}: {cause}") from cause
    return {
        "decode_batch": list(decode_batch),
        "decode_context": list(decode_context),
        "decode_s": decode_s,
        "prefill_new": list(prefill_new),
        "prefill_past": list(prefill_past),
        "prefill_s": prefill_s,
        "shared_s": decode_s[0][0],
    }


def _tables(model: str, gpu: str, backend: str, tensor_parallel: int) -> Tables:
    try:
        package = importlib.import_module(_MODULE)
    except ModuleNotFoundError as missing:
        raise ConfigError(f"step tables need {PACKAGE}: pip install 'conserve-router[tables]'") from missing
    try:
        tables: Tables = package.EngineHandle.compile(model, gpu, backend, tp_size=tensor_parallel)
    except Exception as cause:
        raise ConfigError(f"{PACKAGE} has no tables for {model} on {gpu} ({backend}): {cause}") from cause
    return tables
