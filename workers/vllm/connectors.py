"""How vLLM hands KV over: what each connector is called, and what its workers are told.

A shape is a value. `{host}`, `{handoff_port}`, `{handoff_folder}` and `{engine_id}` stand for the worker's own. What the
router says for each connector is the router's side of the same declaration (`Connector` in `src/dispatch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Connector: TypeAlias = Literal["nixl", "mooncake", "example", "none"]
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Shape:
    """One connector. `config` is added to vLLM's transfer config, `extra` to its extra config, `cpu_extra` there on a CPU."""

    name: str
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    config: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    extra: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    cpu_extra: Mapping[str, str | int] = field(default_factory=lambda: MappingProxyType({}))


CONNECTORS: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        # On a CPU NIXL moves host memory over TCP, in the engine's own thread.
        "nixl": Shape(
            "NixlConnector",
            env={
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "{host}",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": "{handoff_port}",
            },
            cpu_extra={"num_threads": 0},
        ),
        # Its prefillers answer with nothing, so the router must know what they are called: hence names of our own.
        "mooncake": Shape(
            "MooncakeConnector",
            env={"VLLM_HOST_IP": "{host}", "VLLM_MOONCAKE_BOOTSTRAP_PORT": "{handoff_port}"},
            config={"engine_id": "{engine_id}"},
            cpu_extra={"mooncake_protocol": "tcp"},
        ),
        # Files in a folder that all workers see, found by the prompt's tokens. Nothing deletes them.
        "example": Shape("ExampleConnector", extra={"shared_storage_path": "{handoff_folder}"}),
    }
)


def fill(template: str, blanks: Mapping[str, object]) -> str:
    """The template with what is known filled in. Raises ValueError for a blank that this worker has no value for."""
    for name, value in blanks.items():
        if f"{{{name}}}" in template:
            if value is None:
                raise ValueError(f"{name}: this connector needs one")
            template = template.replace(f"{{{name}}}", str(value))
    return template
