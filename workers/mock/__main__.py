"""`python -m workers.mock --role decoder --port 0`: one mock worker as a process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from .worker import MockWorker


async def _serve(arguments: argparse.Namespace) -> None:
    worker = MockWorker(
        role=arguments.role,
        model=arguments.model,
        kv_blocks=arguments.kv_blocks,
        max_model_len=arguments.max_model_len,
        default_tokens=arguments.default_tokens,
        interval_s=arguments.interval_s,
        max_body_bytes=arguments.max_body_bytes,
        remember=not arguments.forget,
    )
    await worker.start(host=arguments.host, port=arguments.port)
    facts = {"url": worker.url, "port": worker.port, "role": worker.role, "model": worker.model}
    ready = json.dumps({"event": "ready", **facts})
    told_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
    sys.stdout.write(f"{ready}\n")
    sys.stdout.flush()
    if arguments.ready_file is not None:
        arguments.ready_file.write_text(ready)
    await told_to_end.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(worker.drain(), arguments.drain_s)
    await worker.stop()


def main() -> None:
    """Parse, serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="workers.mock", description="A fast fake vLLM worker.")
    parser.add_argument("--role", choices=("prefiller", "decoder", "both"), default="both")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; it is printed")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--kv-blocks", type=int, default=4096)
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--default-tokens", type=int, default=8)
    parser.add_argument("--interval-s", type=float, default=0.0, help="from one token to the next")
    parser.add_argument("--max-body-bytes", type=int, default=1 << 30)
    parser.add_argument("--drain-s", type=float, default=5.0, help="for requests under way at SIGTERM")
    parser.add_argument("--forget", action="store_true", help="keep no record of the requests")
    parser.add_argument("--ready-file", type=Path, help="write the ready line here too")
    arguments = parser.parse_args()
    try:
        asyncio.run(_serve(arguments))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
