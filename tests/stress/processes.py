"""The door as a process: started, stopped, and looked at from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.fast_mock import START_S


class DoorProcess:
    """`conserve serve`, and what the system and its own control routes tell of it."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.url = ""
        self._ready = folder / "ready.json"
        self._log = folder / "door.log"
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Serve on a free port; raises AssertionError with its log if it ends instead."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "conserve.cli", "serve", "--port", "0", "--ready-file", str(self._ready)),
                *self._options,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await self._process.stdout.readline()
        assert line, self.log()
        self.url = json.loads(self._ready.read_text())["url"]

    def log(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-4000:]

    def rss_mib(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def sockets(self) -> int:
        """Open sockets, listening ones included."""
        found = 0
        for entry in Path(f"/proc/{self._pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found += str(entry.readlink()).startswith("socket:")
        return found

    async def fleet(self) -> dict[str, Any]:
        """`/v1/fleet?check=true`, over a connection of its own."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/v1/fleet?check=true") as response:
            told: dict[str, Any] = await response.json()
            return told

    async def end(self) -> int:
        """SIGTERM; its exit status."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(START_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        return self._process.returncode or 0

    @property
    def _pid(self) -> int:
        assert self._process is not None
        assert self._process.returncode is None, self.log()
        return self._process.pid
