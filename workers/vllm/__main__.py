"""Say how to start vLLM servers, for those who start them: `python -m conserve_workers.vllm <workers.json`.

Reads a JSON list of objects with the fields of `VllmWorker`, writes a list of `{"argv": [...], "env": {...}, "warnings": [...]}`
in the same order. Exit status 2 and one line on the standard error when a worker cannot be described.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .command import VllmWorker, argv, environment, warnings


def described(fields: dict[str, Any]) -> dict[str, Any]:
    """Command line and environment of one worker, and what it asks for in vain. Raises TypeError or ValueError."""
    lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    worker = VllmWorker(**{**fields, **lists})
    return {"argv": argv(worker), "env": environment(worker), "warnings": warnings(worker)}


def main() -> int:
    """Answer one list of workers."""
    try:
        answers = [described(fields) for fields in json.load(sys.stdin)]
    except (TypeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
