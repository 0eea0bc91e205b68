"""Starts vLLM servers from one process that imported vLLM once; run by the Python that has vLLM.

Each line of the standard input is a server to start, `{"name", "env", "argv", "log"}`; the answer on the standard output is
`{"name": ..., "pid": ...}`, and the pid is also its process group. The first answer is `{"imported": true}`. Servers that were
killed are reaped. When the standard input ends, and on SIGTERM, all groups are killed: whoever started this can die in any way
and nothing stays behind.

Importing takes 8 s of CPU and hundreds of MB for each process; children of one that has it share both.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
from typing import Any

SERVER_MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.utils",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
)


def import_once() -> None:
    """Import what a server needs, and let it fork its engine process too: vLLM spawns, which would import all again."""
    import torch

    torch.set_num_threads(1)
    for name in SERVER_MODULES:
        importlib.import_module(name)
    spawning = importlib.import_module("vllm.utils.system_utils").get_mp_context

    def forking() -> Any:
        return multiprocessing.get_context("fork")

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("get_mp_context") is spawning:
            module.get_mp_context = forking  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()


def number_the_device() -> None:
    """vLLM 0.32's Mooncake connector asks for the accelerator's number also where there is none, and ends: say 0."""
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.current_device_index = lambda: 0


def serve(spec: dict[str, Any]) -> None:
    """Become one server; never returns."""
    os.setsid()
    os.environ.update(spec["env"])
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = spec["argv"]
    if "MooncakeConnector" in str(sys.argv):
        number_the_device()
    status = 1
    try:
        importlib.import_module("vllm.entrypoints.cli.main").main()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def end(groups: list[int]) -> None:
    """kill -9 each group; those that are gone already are no error."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def answer(said: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    # What must be there before the first import comes in our own environment.
    import_once()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    answer({"imported": True})
    pids: list[int] = []
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    try:
        while line := sys.stdin.readline():
            spec = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                serve(spec)
            pids.append(pid)
            answer({"name": spec["name"], "pid": pid})
    finally:
        end(pids)


main()
