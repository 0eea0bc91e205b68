"""The worker as a process: how it starts, says that it is ready, and ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.harness import Worker, tiny

COMMAND = [sys.executable, "-m", "conserve_workers.tiny"]


def test_ready_line_and_file_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with tiny(
        "--role", "prefiller", "--kv-blocks", "77", "--block-size", "8", "--served-model-name", "m",
        "--ready-file", str(path),
    ) as worker:  # fmt: skip
        assert json.loads(path.read_text()) == worker.ready
        assert list(tmp_path.iterdir()) == [path], "written elsewhere, then renamed"
        shown = {key: worker.ready[key] for key in ("event", "role", "model", "kv_blocks", "block_size")}
        assert shown == {
            "event": "ready",
            "role": "prefiller",
            "model": "m",
            "kv_blocks": 77,
            "block_size": 8,
        }
        assert worker.ready["max_model_len"] == 76 * 8, "one block is the null block"
        assert worker.ready["pid"] == worker.process.pid


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no-such-folder"], "no-such-folder"),
        (["--model", "random", "--block-size", "7"], "--block-size 7"),
        (["--model", "random", "--kv-blocks", "1"], "--kv-blocks 1"),
        (["--model", "random", "--lease-s", "0"], "--lease-s"),
        (["--model", "random", "--ready-file", "/no/such/folder/file"], "--ready-file"),
    ],
)
def test_wrong_option_is_named(arguments: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert message in json.loads(done.stdout)["error"]
    assert message in done.stderr


def test_taken_port_is_named(prefiller: Worker) -> None:
    port = prefiller.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [*COMMAND, "--model", "random", "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "in use" in done.stderr


def test_sigterm_lets_an_answer_finish_and_takes_no_new_one() -> None:
    with tiny() as worker:
        events = worker.stream("/v1/completions", prompt="abc", max_tokens=600)
        next(events)
        worker.process.send_signal(signal.SIGTERM)
        rest = list(events)
        assert rest[-1] == "[DONE]"
        assert rest[-2]["choices"][0]["finish_reason"] == "length", "all 600 tokens"
        assert worker.process.wait(timeout=20) == 0


def test_sigterm_ends_an_answer_that_takes_too_long() -> None:
    with tiny("--drain-s", "0.1") as worker:
        events = worker.stream("/v1/completions", prompt="abc", max_tokens=8000)
        next(events)
        worker.process.send_signal(signal.SIGTERM)
        rest = list(events)
        assert "shutting down" in rest[-2]["error"]["message"]
        assert rest[-1] == "[DONE]"
        assert worker.process.wait(timeout=20) == 0


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is not a child")
def test_worker_ends_with_its_parent() -> None:
    script = (
        "import subprocess, sys; "
        "worker = subprocess.Popen([sys.executable, '-m', 'conserve_workers.tiny', '--model', 'random',"
        " '--idle-exit-with-parent'], stdout=subprocess.PIPE, text=True); "
        "print(worker.stdout.readline(), end='', flush=True); "
        "sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    ready = json.loads(parent.stdout.readline())
    handle = os.pidfd_open(ready["pid"])
    try:
        parent.kill()
        parent.wait()
        readable, _writable, _errors = select.select([handle], [], [], 20)
        assert readable == [handle], "the worker did not end"
    finally:
        os.close(handle)
        parent.stdin.close()
        parent.stdout.close()
