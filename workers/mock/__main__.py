"""`python -m workers.mock --role decoder --port 0`: one mock worker as a process."""

from __future__ import annotations

import argparse
import asyncio
import json
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
        remember=not arguments.forget,
    )
    await worker.start(host=arguments.host, port=arguments.port)
    ready = json.dumps({"event": "ready", "url": worker.url, "port": worker.port, "role": worker.role})
    sys.stdout.write(f"{ready}\n")
    sys.stdout.flush()
    if arguments.ready_file is not None:
        arguments.ready_file.write_text(ready)
    await asyncio.Event().wait()


def main() -> None:
    """Parse, serve until killed."""
    parser = argparse.ArgumentParser(prog="workers.mock", description="A fast fake vLLM worker.")
    parser.add_argument("--role", choices=("prefiller", "decoder", "both"), default="both")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; it is printed")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--kv-blocks", type=int, default=4096)
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--default-tokens", type=int, default=8)
    parser.add_argument("--forget", action="store_true", help="keep no record of the requests")
    parser.add_argument("--ready-file", type=Path, help="write the ready line here too")
    arguments = parser.parse_args()
    try:
        asyncio.run(_serve(arguments))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
