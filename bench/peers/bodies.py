"""Request bodies as agents send them: a growing history of tool calls, with escapes, UTF-8 and tools."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = 'the agent reads a file, runs `pytest -q`, sees "AssertionError" at line 42 and edits src/lib.rs\n\t é 漢字 {ok} \\path'
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "run a command",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
    },
}


def body(size: int, *, stream: bool = False, mock: str = "") -> bytes:
    """About `size` bytes; `mock` tells the worker how to answer."""
    draw, words = random.Random(7), WORDS.split(" ")

    def text(length: int) -> str:
        return " ".join(draw.choices(words, k=max(1, length // 7)))

    first = {"role": "user", "content": "session @@SESSION@@ " + text(200)}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent."}, first]
    whole: dict[str, Any] = {"model": "m", "stream": stream, "max_tokens": 8, "temperature": 0.0}
    if mock:
        whole["user"] = f"mock {mock}"
    whole |= {"tools": [TOOL], "messages": messages}

    def written(value: object) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    grown = len(written(whole))
    while grown < size - 200:
        call = {"name": "run", "arguments": json.dumps({"cmd": text(120)})}
        called = {"id": f"call_{len(messages)}", "type": "function", "function": call}
        said = {"role": "assistant", "content": None, "tool_calls": [called]}
        heard = {
            "role": "tool",
            "tool_call_id": called["id"],
            "content": text(min(1200, max(20, size - grown - 400))),
        }
        messages += [said, heard]
        grown += len(written(said)) + len(written(heard)) + 2
    return written(whole)


def write(folder: Path, sizes: dict[str, int]) -> None:
    """`closed-NAME`, 20 growing turns `turn-NAME-N` around that size, and the streams `paced` and `long`."""
    for name, size in sizes.items():
        (folder / f"closed-{name}").write_bytes(body(size))
        for turn in range(20):
            (folder / f"turn-{name}-{turn:02}").write_bytes(body(size * (10 + turn) // 20))
    (folder / "paced").write_bytes(body(1024, stream=True))
    (folder / "long").write_bytes(body(1024, stream=True, mock="flat chunks=1700000"))
