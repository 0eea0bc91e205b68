"""Power limits of GPUs: set while a fleet runs, put back when it ends, and by the next start if it could not end.

Promises: a limit is written down, with what was there before, before it is changed; only what was written down is ever put
back; a limit that somebody else set meanwhile stays. While its owner lives, a record is locked: nobody takes it over, and
the lock goes with the owner however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

from conserve.errors import ConfigError

from .nvml import Gpu, Nvml, NvmlError, PermissionDeniedError

__all__ = ["Cap", "Limit", "PowerError", "PowerLimits", "default_folder"]

Tell: TypeAlias = Callable[[str], None]

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Drivers round what they are given.
_SAME_MW: Final = 1000


class PowerError(Exception):
    """A power limit could not be set: which one, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit that is wanted. `key` is where the user wrote it."""

    gpu: int
    limit_w: int
    key: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that may be set on a GPU that is there."""

    cap: Cap
    gpu: Gpu
    now_mw: int
    least_mw: int
    most_mw: int


@dataclass(frozen=True, slots=True)
class _Record:
    boot_id: str
    uuid: str
    previous_mw: int
    set_mw: int
    pid: int


def default_folder() -> Path:
    """Where records are kept: `$XDG_STATE_HOME/conserve/power`."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "conserve" / "power"


def check(caps: Sequence[Cap], nvml: Nvml) -> list[Limit]:
    """The GPUs that the caps mean. Raises ConfigError, which names the key and its range, or PowerError."""
    found = []
    for cap in caps:
        try:
            gpu = nvml.gpu(cap.gpu)
            if gpu is None:
                raise ConfigError(f"{cap.key}: there is no GPU {cap.gpu} on this machine", key=cap.key)
            (least_mw, most_mw), now_mw = gpu.limits_mw(), gpu.limit_mw()
        except NvmlError as error:
            raise PowerError(f"{cap.key}: {error}; leave the key out") from error
        if not least_mw <= cap.limit_w * 1000 <= most_mw:
            accepted = f"{-(-least_mw // 1000)} to {most_mw // 1000} W on {gpu}"
            raise ConfigError(
                f"{cap.key}: takes {accepted}, not {cap.limit_w}", key=cap.key, accepted=accepted
            )
        found.append(Limit(cap, gpu, now_mw, least_mw, most_mw))
    return found


class PowerLimits:
    """The limits that this process set, and the records of those that another one left behind."""

    def __init__(self, folder: Path, *, boot_id: Path = BOOT_ID) -> None:
        self._folder = folder
        self._boot_id_file = boot_id
        self._held: list[tuple[Path, int, Gpu, _Record]] = []

    def left_over(self) -> list[Path]:
        """Records of limits that were set and not put back; those of processes that still run among them."""
        return sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []

    def restore_left_over(self, tell: Tell) -> None:
        """Put back what a process that was killed could not; `tell` gets a line for each."""
        records = self.left_over()
        if not records:
            return
        try:
            nvml = Nvml()
        except NvmlError as error:
            tell(f"power limits left behind stay as they are, {error}: {', '.join(map(str, records))}")
            return
        with _unbroken():
            for path in records:
                self._restore_one(path, nvml, tell)
        nvml.close()

    @contextlib.contextmanager
    def applied(self, caps: Sequence[Cap], tell: Tell) -> Iterator[None]:
        """Set the limits on entering, put them back on leaving; all of them or none.

        Raises ConfigError for a limit outside the GPU's range, PowerError where one cannot be set.
        """
        if not caps:
            yield
            return
        try:
            nvml = Nvml()
        except NvmlError as error:
            raise PowerError(f"{caps[0].key}: {error}; leave the key out") from error
        limits = check(caps, nvml)
        try:
            with _unbroken():
                for limit in limits:
                    self._set(limit)
            for limit in limits:
                tell(
                    f"{limit.gpu}: power limit {limit.cap.limit_w} W, was {limit.now_mw / 1000:g} W until the end"
                )
            yield
        finally:
            with _unbroken():
                self._put_back(tell)
            nvml.close()

    def _set(self, limit: Limit) -> None:
        gpu, key = limit.gpu, limit.cap.key
        record = _Record(self._boot_id(), gpu.uuid, limit.now_mw, limit.cap.limit_w * 1000, os.getpid())
        path = self._folder / f"{gpu.uuid}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise PowerError(f"{key}: {path}: {error.strerror}") from error
        if not _lock(lock, path):
            os.close(lock)
            raise PowerError(f"{key}: another `conserve up` has set the limit of {gpu} ({path})")
        if os.fstat(lock).st_size:
            os.close(lock)
            raise PowerError(f"{key}: {gpu} has a limit left behind that could not be put back; see {path}")
        os.write(lock, json.dumps(asdict(record)).encode())
        os.fsync(lock)
        try:
            gpu.set_limit_mw(record.set_mw)
        except NvmlError as error:
            path.unlink()
            os.close(lock)
            if isinstance(error, PermissionDeniedError):
                why = "only root may set it: run as root, or leave the key out"
                raise PowerError(f"{key}: the power limit of {gpu} was not changed: {why}") from error
            raise PowerError(f"{key}: the power limit was not changed: {error}") from error
        self._held.append((path, lock, gpu, record))

    def _put_back(self, tell: Tell) -> None:
        """The limits of this process, as they were; a record stays where that fails."""
        while self._held:
            path, lock, gpu, record = self._held.pop()
            if _undo(gpu, record, tell):
                path.unlink(missing_ok=True)
            os.close(lock)

    def _restore_one(self, path: Path, nvml: Nvml, tell: Tell) -> None:
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError as error:
            tell(f"{path}: {error.strerror}")
            return
        try:
            if _lock(lock, path) and self._undo_record(path, nvml, tell):
                path.unlink(missing_ok=True)
        finally:
            os.close(lock)

    def _undo_record(self, path: Path, nvml: Nvml, tell: Tell) -> bool:
        """Whether the record has done its work."""
        record = _read(path)
        # Cut short before it was whole, so before the limit was changed; or a limit that ended with that boot.
        if record is None or record.boot_id != self._boot_id():
            return True
        try:
            gpu = next((gpu for gpu in nvml.gpus() if gpu.uuid == record.uuid), None)
        except NvmlError as error:
            tell(f"a power limit left behind was not put back: {error}; it is tried again at the next start")
            return False
        if gpu is None:
            tell(f"a power limit left behind was not put back: there is no GPU {record.uuid} now")
            return False
        return _undo(gpu, record, tell)

    def _boot_id(self) -> str:
        try:
            return self._boot_id_file.read_text("ascii").strip()
        except OSError:
            return "unknown"


def _undo(gpu: Gpu, record: _Record, tell: Tell) -> bool:
    """Put the limit back unless somebody else changed it; whether the record has done its work."""
    try:
        now_mw = gpu.limit_mw()
        if abs(now_mw - record.set_mw) > _SAME_MW:
            tell(f"{gpu}: the power limit was changed to {now_mw / 1000:g} W meanwhile and stays")
            return True
        gpu.set_limit_mw(record.previous_mw)
    except NvmlError as error:
        command = f"nvidia-smi -i {gpu.index} -pl {record.previous_mw / 1000:g}"
        tell(f"{gpu}: the power limit was not put back: {error}; as root: {command}")
        return False
    tell(f"{gpu}: power limit {record.previous_mw / 1000:g} W again")
    return True


def _read(path: Path) -> _Record | None:
    try:
        values = json.loads(path.read_text("utf-8"))
        return _Record(
            boot_id=str(values["boot_id"]),
            uuid=str(values["uuid"]),
            previous_mw=int(values["previous_mw"]),
            set_mw=int(values["set_mw"]),
            pid=int(values["pid"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _lock(lock: int, path: Path) -> bool:
    """Take the record, unless a living process has it or it was taken away meanwhile."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock).st_ino == path.stat().st_ino
    except OSError:
        return False


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    """A stop signal waits until the block has ended, so that no limit is changed without its record."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
