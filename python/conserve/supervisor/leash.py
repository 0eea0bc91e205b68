"""Run a command that must not outlive the process that started it, even when that one is killed with -9.

    python -I -S leash.py PARENT_PID MODE COMMAND [ARGUMENT ...]

MODE `exec` (Linux): ask the kernel to kill this process when its parent dies, then become the command; the setting
survives exec, so no extra process stays. MODE `watch` (elsewhere): start the command and kill its process group at
the end of the standard input, whose other end only the parent holds. Only the standard library is imported, and
nothing of conserve: this file is run by path, in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1
ORPHANED = 125


def exec_mode(parent_pid: int, argv: list[str]) -> int:
    """Become `argv` with the kernel's promise to kill it when the parent dies; returns only when it cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.stderr.write(f"leash: prctl: {os.strerror(ctypes.get_errno())}\n")
        return ORPHANED
    if os.getppid() == parent_pid:  # Else the parent died before the promise was made: nobody would kill us.
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted: the command is a list
    return ORPHANED


def watch_mode(parent_pid: int, argv: list[str]) -> int:
    """Run `argv` as a child and kill the whole group when the standard input ends."""
    if os.getppid() != parent_pid:
        return ORPHANED
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def main(args: list[str]) -> int:
    """Parse `PARENT_PID MODE COMMAND...` and run it; 127 when the command cannot be started."""
    parent_pid, mode, argv = int(args[0]), args[1], args[2:]
    try:
        return exec_mode(parent_pid, argv) if mode == "exec" else watch_mode(parent_pid, argv)
    except OSError as error:
        way_out = '; give its path with command = ["/path/to/vllm"]' if argv[0] == "vllm" else ""
        sys.stderr.write(f"leash: cannot start {argv[0]}: {error.strerror}{way_out}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
