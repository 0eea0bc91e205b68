"""A decoder with so little memory that loss is easy to provoke, and whose KV events can be heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.vllm.servers import Forge, completion, free_ports, token_ids, wishes

# 4 MiB are 64 blocks of 32 tokens, one of them the null block.
KV_BYTES = 4 << 20
KV_BLOCKS = 63
MAX_MODEL_LEN = 1536
COMPUTED = "vllm:prompt_tokens_by_source_total{local_compute}"


@dataclass(frozen=True, slots=True)
class Small:
    """One of them, by name, and where it publishes its KV events."""

    forge: Forge
    name: str
    events_port: int
    replay_port: int

    def options(self, *, events_port: int | None = None) -> Mapping[str, str]:
        """What `door_over` tells the router: where the events are, or where they come through."""
        where = f"kv_events=tcp://127.0.0.1:{events_port or self.events_port}"
        return {self.name: f"{where},kv_replay=tcp://127.0.0.1:{self.replay_port}"}

    def computed(self) -> float:
        """Prompt tokens that it computed so far."""
        return self.forge[self.name].metrics()[COMPUTED]

    def usage_blocks(self) -> int:
        """Blocks that it cannot give to anybody else."""
        return round(self.forge[self.name].metrics()["vllm:kv_cache_usage_perc"] * KV_BLOCKS)

    def forget(self) -> None:
        """Empty its prefix cache."""
        status, _ = self.forge[self.name].send("POST", "/reset_prefix_cache")
        assert status == 200

    def intrude(self, seed: int, tokens: int) -> None:
        """A request that no router knows of: it takes what memory it needs."""
        body = completion(token_ids(seed, tokens), max_tokens=1)
        answer = self.forge[self.name].post("/v1/completions", body)
        assert answer.status == 200, answer.body


def start_small(forge: Forge, name: str, *, retention_ttl_s: int | None = None) -> Small:
    """Start one."""
    events_port, replay_port = free_ports(2)
    (wanted,) = wishes({name: "decoder"}, kv_cache_bytes=KV_BYTES, max_model_len=MAX_MODEL_LEN).values()
    wanted = replace(
        wanted,
        events_port=events_port,
        replay_port=replay_port,
        retention_ttl_s=retention_ttl_s,
        env={"VLLM_SERVER_DEV_MODE": "1"},  # for /reset_prefix_cache
    )
    forge.start({name: wanted})
    return Small(forge, name, events_port, replay_port)
