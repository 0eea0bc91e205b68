"""The processes of the demo: tiny engines and the router, each a process of its own, as a user runs them.

The router runs as `conserve serve` rather than inside this process: it is the program that users run, it can be killed
and measured like one, and the agents' own work does not share its event loop and so does not show in its times.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conserve.supervisor import Fleet, ProcessSpec, WorkerProcess

from .options import BLOCK_SIZE, DECODERS, MAX_MODEL_LEN, PREFILLERS, Options

MODEL_NAME = "demo"

# -P: the directory that the user stands in is not searched for modules; it may have a `random.py` of its own.
_PYTHON = (sys.executable, "-P", "-m")

# Three engines, the router and the agents share what may be two slow cores: a worker that is merely slow is not to be
# taken for a lost one, which would relocate its conversations, nor a slow handoff for a broken one.
_PATIENT_S = "600"
_PATIENCE = {
    "CONSERVE_PREFILL_TIMEOUT_S": _PATIENT_S,
    "CONSERVE_FIRST_BYTE_TIMEOUT_S": _PATIENT_S,
    "CONSERVE_STREAM_IDLE_TIMEOUT_S": _PATIENT_S,
    "CONSERVE_PROBE_TIMEOUT_S": "20",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A router and the workers behind it: base URLs."""

    router: str
    workers: Mapping[str, str]


def worker_spec(name: str, role: str, options: Options, *, kv_blocks: int) -> ProcessSpec:
    """One tiny engine. It learns from the operating system which port it has."""
    return ProcessSpec(
        name=name,
        role=role,
        argv=(
            *(*_PYTHON, "conserve_workers.tiny"),
            *("--model", options.model, "--served-model-name", MODEL_NAME, "--role", role),
            *("--host", "127.0.0.1", "--port", "0", "--handoff-port", "0"),
            *("--kv-blocks", str(kv_blocks), "--block-size", str(BLOCK_SIZE)),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(max(16, options.conversations))),
            *("--threads", str(options.threads), "--handoff-timeout-s", _PATIENT_S),
        ),
        env={"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"},
    )


def router_spec(workers: Mapping[str, str], *, env: Mapping[str, str] | None = None) -> ProcessSpec:
    """`conserve serve` over the workers; names that begin with `p` are prefillers. `env` adds `CONSERVE_*` settings."""
    argv = [*_PYTHON, "conserve.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
    for name, url in workers.items():
        argv += ["--prefiller" if name.startswith("p") else "--decoder", f"{url},name={name}"]
    return ProcessSpec(
        name="router",
        role="router",
        argv=(*argv, "--connector", "nixl"),
        env={"PYTHONUNBUFFERED": "1", **(env or {})},
        hidden_prefixes=("CONSERVE_",),  # Settings of a router that the user runs are not for this one.
        health_path="/readyz",
        ready=router_ready,
    )


def router_ready(line: str) -> str | None:
    """The URL of `conserve serves http://HOST:PORT/v1 (...)`; None for any other line."""
    match = re.search(r"\bserves (https?://\S+)/v1\b", line)
    return match[1] if match else None


async def start_cluster(
    fleet: Fleet, options: Options, *, on_ready: Callable[[WorkerProcess], None] | None = None
) -> Cluster:
    """Start the prefiller and the decoders together, then the router.

    Raises:
        SupervisorError: a process did not come up; all that were started by this call are stopped.
    """
    per_decoder = -(-options.conversations // DECODERS) + 1
    specs = [
        *(
            worker_spec(
                f"p{number}", "prefiller", options, kv_blocks=options.kv_blocks(options.conversations)
            )
            for number in range(PREFILLERS)
        ),
        *(
            worker_spec(f"d{number}", "decoder", options, kv_blocks=options.kv_blocks(per_decoder))
            for number in range(DECODERS)
        ),
    ]
    workers = await fleet.start(specs, timeout_s=options.start_timeout_s, on_ready=on_ready)
    router = await fleet.start(
        [router_spec(workers, env=_PATIENCE)], timeout_s=options.start_timeout_s, on_ready=on_ready
    )
    return Cluster(router=router["router"], workers=workers)


async def start_single(
    fleet: Fleet, options: Options, *, on_ready: Callable[[WorkerProcess], None] | None = None
) -> str:
    """Start one engine that serves everything by itself; its URL.

    Raises:
        SupervisorError: it did not come up.
    """
    spec = worker_spec("single", "both", options, kv_blocks=options.kv_blocks(options.conversations))
    return (await fleet.start([spec], timeout_s=options.start_timeout_s, on_ready=on_ready))["single"]
