"""The fast mock worker (`workers/mock/fast`) as a process: built once, told over HTTP what to do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from pathlib import Path
from typing import Self

import aiohttp

CRATE = Path(__file__).parents[2] / "workers" / "mock" / "fast"
START_S = 60.0
"""For a process to say that it is ready; a busy machine needs long."""


@functools.cache
def binary() -> Path:
    """The program, built if it is not."""
    command = ["cargo", "build", "--release", "--locked", "--quiet"]
    subprocess.run(command, cwd=CRATE, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", CRATE / "target")) / "release" / "fastmock"


class FastMock:
    """One worker; after `kill`, `start` brings a new one under the same address."""

    def __init__(self, *options: str) -> None:
        self.port = 0
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        """Serve; another program may hold the port for a moment, so this tries until it has it."""
        async with asyncio.timeout(START_S):
            while True:
                self._process = await asyncio.create_subprocess_exec(
                    binary(),
                    *("serve", "--port", str(self.port), *self._options),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                assert self._process.stdout is not None
                if line := await self._process.stdout.readline():
                    self.port = int(line)
                    return self
                await self._process.wait()

    async def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGSTOP: its connections stay open and silent."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    async def tell(self, words: str) -> None:
        """How to answer from now on; see `workers/mock/fast/src/spec.rs`."""
        async with aiohttp.ClientSession() as http, http.post(f"{self.url}/mock", data=words) as response:
            assert response.status == 200, words

    async def counts(self) -> dict[str, int]:
        """What it counted."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/mock") as response:
            told: dict[str, int] = await response.json()
            return told

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
