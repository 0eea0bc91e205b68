"""What differs from one class of device to the next; a value for each, nothing is started here.

The chunk budgets are starting points: a prefiller takes chunks that keep its units busy, a decoder takes small ones so
that an append-prefill delays the answers beside it by little. Measure on your own model and say `--max-num-batched-tokens`,
or say how long a step may take (`StepTime`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Role: TypeAlias = Literal["prefiller", "decoder", "both"]


SMALLEST_CHUNK: Final = 256
"""With fewer, a prompt's own overhead outweighs what the others gain."""
LARGEST_CHUNK: Final = 16_384
"""What the fastest device takes, for one that says nothing of itself."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step takes: a decode step, and more for each prompt token in it."""

    decode_ms: float
    prompt_ms_per_token: float

    def chunk_tokens(self, target_ms: float, *, most: int = LARGEST_CHUNK) -> int:
        """Prompt tokens with which a step takes about `target_ms`; from 256 to `most`, whatever the target."""
        fitting = (target_ms - self.decode_ms) / self.prompt_ms_per_token
        return max(SMALLEST_CHUNK, int(min(fitting, most)))

    def why_not(self, target_ms: float) -> str | None:
        """Why no chunk keeps a step within `target_ms`; None if one does."""
        if target_ms <= self.decode_ms:
            return f"a decode step alone takes {self.decode_ms:g} ms"
        smallest_ms = self.decode_ms + SMALLEST_CHUNK * self.prompt_ms_per_token
        if target_ms < smallest_ms:
            return f"with {SMALLEST_CHUNK} tokens of a prompt, the fewest, a step takes {smallest_ms:.4g} ms"
        return None


@dataclass(frozen=True, slots=True)
class Preset:
    """One class of device.

    `memory_utilization` is the share of a GPU's memory that the engine takes, None where the KV size is given in bytes.
    `*_chunk_tokens` is the budget of one step of that role, None for vLLM's own default. `step` is that of a model of 8 billion
    parameters in bfloat16, with the constants of the simulator's presets of that size; None where there are none.
    """

    device: Literal["cpu", "cuda"]
    prefiller_chunk_tokens: int | None = None
    decoder_chunk_tokens: int | None = None
    memory_utilization: float | None = None
    kv_cache_bytes: int | None = None
    step: StepTime | None = None
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def chunk_tokens(self, role: Role) -> int | None:
        """The budget of one scheduler step; a worker that does both is bounded like a decoder."""
        return self.prefiller_chunk_tokens if role == "prefiller" else self.decoder_chunk_tokens


# One thread for each engine, no thread pinned: several engines share a machine. Compiling costs a minute and more at each
# start, so it is off.
CPU: Final = Preset(
    device="cpu",
    kv_cache_bytes=256 << 20,
    flags=("--enforce-eager", "--distributed-executor-backend", "uni"),
    env=MappingProxyType(
        {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp",
            # Read by a plug-in that calms NIXL's progress thread, where one is installed; else it means nothing.
            "NIXL_PTHR_DELAY_US": "1000",
        }
    ),
)

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "cpu": CPU,
        # 48 GB, 0.7 TB/s: capacity for a tail of decodes, short steps.
        "a40": Preset(
            "cuda",
            prefiller_chunk_tokens=4096,
            decoder_chunk_tokens=1024,
            memory_utilization=0.90,
            step=StepTime(38.0, 0.150),
        ),
        # 48 GB, 0.86 TB/s, more arithmetic than an A40.
        "l40s": Preset(
            "cuda",
            prefiller_chunk_tokens=8192,
            decoder_chunk_tokens=1024,
            memory_utilization=0.90,
            step=StepTime(28.2, 0.0717),
        ),
        # 40 or 80 GB, 1.6 to 2 TB/s.
        "a100": Preset(
            "cuda",
            prefiller_chunk_tokens=8192,
            decoder_chunk_tokens=2048,
            memory_utilization=0.90,
            step=StepTime(17.2, 0.059),
        ),
        # 80 GB, 3.35 TB/s.
        "h100": Preset(
            "cuda",
            prefiller_chunk_tokens=16384,
            decoder_chunk_tokens=2048,
            memory_utilization=0.92,
            step=StepTime(9.2, 0.027),
        ),
        # 141 GB, 4.8 TB/s; arithmetic of an H100.
        "h200": Preset(
            "cuda",
            prefiller_chunk_tokens=16384,
            decoder_chunk_tokens=4096,
            memory_utilization=0.92,
            step=StepTime(7.3, 0.027),
        ),
    }
)
