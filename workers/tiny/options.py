"""The engine's options, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["prefiller", "decoder", "both"]
LoadFailurePolicy = Literal["fail", "recompute"]


@dataclass(frozen=True, slots=True)
class Options:
    """See `cli` for what each option means."""

    model: str = "smollm2"
    role: Role = "both"
    host: str = "127.0.0.1"
    port: int = 0
    kv_blocks: int = 1024
    block_size: int = 16
    max_num_seqs: int = 16
    max_model_len: int = 8192
    chunk_tokens: int = 256
    threads: int = 1
    lease_s: float = 30.0
    device: str = "cpu"
    served_model_name: str | None = None
    handoff_host: str | None = None
    handoff_port: int = 0
    handoff_timeout_s: float = 10.0
    kv_load_failure_policy: LoadFailurePolicy = "fail"
    max_body_bytes: int = 16 * 1024 * 1024
    drain_s: float = 10.0
    ready_file: str | None = None
    idle_exit_with_parent: bool = False
    log_level: str = "warning"

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or self.model

    @property
    def handoff_address(self) -> str:
        """The host that other workers reach this one's handoff port at."""
        return self.handoff_host or self.host
