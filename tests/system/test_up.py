"""`conserve up` as a user runs it: real tiny engines, the router, a worker that dies, an orderly end."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.timeout(120)

FLEET = """
model = "random"
served_model_name = "demo"
first_port = 0
first_handoff_port = 0
[[tier]]
role = "prefiller"
engine = "tiny"
kv_blocks = 256
[[tier]]
role = "decoder"
engine = "tiny"
count = 2
kv_blocks = 256
[router]
port = 0
probe_interval_s = 0.1
probe_timeout_s = 20
"""
UP = (sys.executable, "-P", "-m", "conserve.cli", "up")


@dataclass
class Up:
    """A running `conserve up` and the lines that it has said."""

    process: subprocess.Popen[str]
    lines: list[str]

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"never said {pattern!r}:\n{''.join(self.lines)}")


@contextmanager
def running(folder: Path, text: str = FLEET) -> Iterator[Up]:
    (folder / "fleet.toml").write_text(text)
    argv = [*UP, "fleet.toml", "--log-dir", "logs"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    ) as process:
        try:
            yield Up(process, [])
        finally:
            process.kill()


def ask(
    url: str, method: str, path: str, body: dict[str, Any] | None = None, conversation: str = "task-42"
) -> Any:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request(
            method, path, None if body is None else json.dumps(body), {"x-conversation-id": conversation}
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer
    finally:
        connection.close()


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def port_of(pid: int) -> str:
    """The `--port` of a worker's command line."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return words[words.index("--port") + 1]


def await_end(handle: int) -> None:
    """Wait until the process of a pidfd has ended."""
    try:
        assert select.select([handle], [], [], 20)[0], "it outlived the program that started it"
    finally:
        os.close(handle)


def test_fleet_serves_mends_itself_and_ends_in_order(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        url = up.until(r"conserve serves (http://\S+)/v1")[1]
        ready = [line for line in up.lines if " serves " in line and "of 3)" in line]
        assert len(ready) == 3, "each worker is told of when it serves"
        body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        assert ask(url, "POST", "/v1/chat/completions", body)["usage"]["completion_tokens"] == 4
        fleet = ask(url, "GET", "/v1/fleet?check=true")
        assert fleet["counters"]["handoffs"] == 1
        assert {row["name"]: row["tier"] for row in fleet["workers"]} == {
            "p0": "prefiller0", "d0": "decoder1", "d1": "decoder1"
        }  # fmt: skip
        workers = children(up.process.pid)
        assert len(workers) == 4
        port = next(row["url"].rpartition(":")[2] for row in fleet["workers"] if row["name"] == "d0")
        victim = next(pid for pid in workers if port_of(pid) == port)
        os.kill(victim, signal.SIGKILL)
        up.until(r"d0 ended with status -9; it is started again in 1 s")
        up.until(r"d0 serves http://\S+ again")
        assert ask(url, "POST", "/v1/chat/completions", body)["usage"]["completion_tokens"] == 4
        workers = children(up.process.pid)
        up.process.send_signal(signal.SIGTERM)
        up.until("every process has ended")
        assert up.process.wait(timeout=30) == 0
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "p0.log", "d0.log", "d0.log.1", "d1.log", "router.log"
    }  # fmt: skip


def test_killed_with_9_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.until(r"conserve serves")
        workers = children(up.process.pid)
        handles = [os.pidfd_open(pid) for pid in workers]
        up.process.kill()
        up.process.wait()
    for handle in handles:
        await_end(handle)


def test_worker_that_does_not_start_ends_all_with_its_log(tmp_path: Path) -> None:
    with running(tmp_path, FLEET.replace('"random"', '"/no/such/model"')) as up:
        match = up.until(r"conserve up: (\w\d) ended with status 1")
        assert up.process.wait(timeout=30) == 1
        rest = up.process.stdout.read() if up.process.stdout else ""
        assert "/no/such/model" in rest, "the end of its log says why"
        assert match[1] in ("p0", "d0", "d1")
        assert "The logs of all processes are in" in rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["SIGINT", "SIGHUP"])
def test_stop_while_starting_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as up:
        up.until("starting 3 workers")
        up.process.send_signal(number)
        up.until("every process has ended")
        assert up.process.wait(timeout=30) == 0


def test_dry_run_prints_commands_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    done = subprocess.run(
        [*UP, "fleet.toml", "--dry-run", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    data = json.loads(done.stdout)
    assert [row["name"] for row in data["workers"]] == ["p0", "d0", "d1"]
    assert "--kv-blocks" in data["workers"][0]["argv"]
    assert data["router"]["url"].startswith("http://127.0.0.1:")
    text = subprocess.run(
        [*UP, "fleet.toml", "--dry-run"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert text.count("\nenv ") == 4, "a line for the shell for each process"
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.toml"]


def test_wrong_file_is_status_2_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET.replace("count = 2", "count = 0"))
    done = subprocess.run([*UP, "fleet.toml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == "conserve up: fleet.toml: tier[1].count: takes a whole number from 1 to 1024, not 0\n"
    )
