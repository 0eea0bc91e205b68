"""One worker process from start to end: ready line, log file, terminate, kill.

Promises: the process is in a group of its own, so a Ctrl-C in the terminal reaches only us and we decide; it dies
with us (`leash`); what it prints is in its log file. Leaves to others: which processes there are (`fleet`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from .probe import answers
from .spec import ProcessSpec

logger = logging.getLogger(__name__)

_LEASH = Path(__file__).with_name("leash.py")
_LINE_LIMIT_BYTES = 1 << 20
_TAIL_LINES = 15
_LAST_WORDS_S = 1.0


class SupervisorError(RuntimeError):
    """A worker process could not be started or kept; the message names it and ends with the tail of its log."""


class ProcessExitedError(SupervisorError):
    """The process ended although it was still needed."""


class ProcessNotReadyError(SupervisorError):
    """The process runs but did not say in time that it serves."""


class WorkerProcess:
    """A started process. Make one with `WorkerProcess.start`; give it back with `stop` or `kill`."""

    def __init__(
        self,
        spec: ProcessSpec,
        process: asyncio.subprocess.Process,
        transport: asyncio.SubprocessTransport,
        exited: asyncio.Event,
        log_path: Path,
    ) -> None:
        self.spec = spec
        self.log_path = log_path
        self.started_at_s = time.monotonic()
        self._process = process
        self._transport = transport
        self._exited = exited
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if spec.url is not None:
            self._url.set_result(spec.url.rstrip("/"))
        self._pump = asyncio.create_task(self._copy_output(), name=f"log {spec.name}")
        self._sweep = asyncio.create_task(self._end_with_leader(), name=f"group of {spec.name}")

    @classmethod
    async def start(cls, spec: ProcessSpec, *, log_dir: Path, leash: str | None = None) -> WorkerProcess:
        """Start the process and return at once; `ready` waits until it serves.

        Call it from the main thread: on Linux the process dies with the *thread* that started it. `leash` is how the
        process is tied to this one, `exec` on Linux and `watch` elsewhere unless given.

        Raises:
            SupervisorError: the log file cannot be written or the interpreter cannot be started.
        """
        # The kernel's promise to kill a process with its parent does not reach that one's children.
        mode = leash or ("exec" if sys.platform == "linux" and not spec.has_children else "watch")
        log_path = log_dir / f"{spec.name}.log"
        loop = asyncio.get_running_loop()
        argv = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), mode, *spec.argv]
        try:
            log_path.write_bytes(b"")
            with log_path.open(
                "ab"
            ) as log:  # Appending: the pump writes the standard output to the same file.
                transport, protocol = await loop.subprocess_exec(
                    lambda: _Protocol(loop),
                    *argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=spec.environment(os.environ),
                    start_new_session=True,
                )
        except OSError as error:
            raise SupervisorError(f"{spec.name} cannot be started: {error}") from error
        process = asyncio.subprocess.Process(transport, protocol, loop)
        logger.info(
            "process started name=%s role=%s pid=%d log=%s", spec.name, spec.role, process.pid, log_path
        )
        return cls(spec, process, transport, protocol.exited, log_path)

    @property
    def name(self) -> str:
        """The name given in the spec."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """Process id, and id of the process group; a number of the past once the process has ended."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def url(self) -> str:
        """Where it serves.

        Raises:
            ProcessNotReadyError: it has not said so yet.
        """
        if not self._url.done() or self._url.cancelled() or self._url.exception() is not None:
            raise ProcessNotReadyError(f"{self.name} has not said where it serves")
        return self._url.result()

    async def ready(self, *, timeout_s: float) -> str:
        """Wait for the ready line, unless the URL is known, and for a healthy answer; return the URL.

        Raises:
            ProcessExitedError: it ended before it was ready.
            ProcessNotReadyError: `timeout_s` passed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                url = await asyncio.shield(self._url)
                await self._healthy(url + self.spec.health_path)
        except TimeoutError:
            raise ProcessNotReadyError(
                f"{self.name} was not ready within {timeout_s:g} s{self._tail()}"
            ) from None
        return url

    async def wait(self) -> int:
        """Wait until the process and what it started have ended and the output is in the log; the exit status."""
        await self._exited.wait()
        await asyncio.shield(self._sweep)
        # What left the group may hold the pipe for ever.
        await asyncio.wait((self._pump,), timeout=_LAST_WORDS_S)
        return self._status()

    async def stop(self, *, grace_s: float = 5.0) -> int:
        """Ask the process to end (SIGTERM), kill its group after `grace_s`; the exit status."""
        self.signal(signal.SIGCONT)  # A stopped process cannot act on SIGTERM.
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._exited.wait()
        except TimeoutError:
            logger.warning("process killed name=%s: did not end within %g s", self.name, grace_s)
        return await self.kill()

    async def kill(self) -> int:
        """End the process and what it started, now; the exit status."""
        self._kill_group()
        await self._exited.wait()
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump
        # What left the group may hold our pipe: closed here, while the loop still runs, and not by whoever tidies up later.
        self._transport.close()
        await asyncio.sleep(0)
        return self._status()

    def _status(self) -> int:
        if self.returncode is None:
            raise SupervisorError(f"{self.name} still runs")
        return self.returncode

    async def _end_with_leader(self) -> None:
        """When the process ends, end what it left behind: an engine without its server serves nobody and holds the pipe."""
        await self._exited.wait()
        self._kill_group()

    def _kill_group(self) -> None:
        # The group outlives its leader when the leader left children behind, so this is sent even after the exit.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing happens when it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _healthy(self, url: str) -> None:
        """Return once a GET of `url` answers 2xx; a server may print its line a moment before it answers."""
        while not await answers(url):
            if self.returncode is not None:
                raise ProcessExitedError(self._ended())
            # No event tells us that another process began to listen: ask again.
            await asyncio.sleep(0.05)

    async def _copy_output(self) -> None:
        """Copy the standard output to the log and look for the ready line until the process ends."""
        try:
            await self._copy_lines()
            await self._process.wait()
        finally:
            if not self._url.done():
                self._url.set_exception(ProcessExitedError(self._ended()))
                self._url.exception()  # Retrieved: a fleet that is torn down early does not ask for it.

    async def _copy_lines(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            raise SupervisorError(f"{self.name} was started without a pipe for its output")
        with self.log_path.open("ab") as log:
            while line := await _read_line(stdout):
                log.write(line)
                log.flush()
                if not self._url.done() and (url := self.spec.ready(line.decode("utf-8", "replace"))):
                    self._url.set_result(url.rstrip("/"))

    def _ended(self) -> str:
        return f"{self.name} ended with status {self.returncode} before it was ready{self._tail()}"

    def _tail(self) -> str:
        """The last lines of the log, for an error message."""
        try:
            lines = self.log_path.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        if not lines:
            return f"; its log is empty: {self.log_path}"
        return f"; the end of {self.log_path}:\n" + "\n".join(f"    {line}" for line in lines)


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells when the process has ended, be its pipes closed or held open by what it had started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_LINE_LIMIT_BYTES, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """One line, or a piece of a line that is longer than the buffer; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as over:
        return await stream.readexactly(max(over.consumed, 1))
