"""Reads the meters a few times a second in a thread of its own, and books what they say on the workers.

Promises: a meter that fails stops nothing but its own zone, and is asked again; the numbers told belong to one moment.
Leaves to others: the arithmetic (`account`), which turns run (`Router.snapshot`), serving the numbers (the doors).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from .account import Account, Share, Usage, Zone
from .exposition import exposition, told
from .meter import Found, Meter, MeterError, find

if TYPE_CHECKING:
    from conserve._core import Router, WorkerView
    from conserve.settings import Settings

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

_NO_TIER: Final = "default"
_LOCAL: Final = frozenset(("127.0.0.1", "::1", "localhost"))


@dataclass(slots=True)
class _Seen:
    """What a worker had done at the last look; a worker that was restarted has a new id and begins at 0."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Sampler:
    """The energy of one router's workers on this machine."""

    def __init__(
        self,
        router: Router,
        zones: Mapping[str, tuple[str, ...]],
        tiers: Mapping[str, str],
        found: Found,
        *,
        interval_s: float = 0.2,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._meters: Mapping[str, Meter] = found.meters
        self._missing = found.missing
        metered = {key: Zone(workers) for key, workers in zones.items() if key in found.meters}
        self._account = Account(metered, tiers)
        self._interval_s = interval_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._seen: dict[int, _Seen] = {}
        self._looked_s: dict[str, float] = {}
        self._owed: dict[tuple[int, str], int] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, router: Router, settings: Settings) -> Sampler:
        """The meters of the workers that `settings` name: of their GPUs, or of the processors of this machine."""
        zones: dict[str, list[str]] = {}
        tiers: dict[str, str] = {}
        letters = {"prefiller": "p", "decoder": "d", "both": "w"}
        counts = dict.fromkeys(letters, 0)
        for role, at in settings.workers():
            name = at.name or f"{letters[role]}{counts[role]}"
            counts[role] += 1
            tiers[name] = at.tier or _NO_TIER
            keys = [f"gpu{gpu}" for gpu in at.gpus]
            if not keys and urlsplit(at.url).hostname in _LOCAL:
                keys = ["cpu"]
            for key in keys:
                zones.setdefault(key, []).append(name)
        found = Found({}, {}) if settings.energy == "off" else find(list(zones))
        for zone, why in found.missing.items():
            logger.info("no energy counter for %s: %s", zone, why)
        named = {key: tuple(names) for key, names in zones.items()}
        return cls(router, named, tiers, found, interval_s=settings.energy_interval_s)

    def start(self) -> None:
        """Begin to look, if there is anything to look at."""
        if self._meters and self._thread is None:
            for key, meter in self._meters.items():
                logger.info("energy of %s: %s, by %s", key, meter.name, meter.source)
            self.look()
            self._thread = threading.Thread(target=self._keep_looking, name="conserve-energy", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look once more and stop; returns when the thread has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.look()

    def _keep_looking(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.look()
            except Exception:
                logger.exception("looking at the energy counters failed; it goes on")

    def look(self) -> None:
        """Read every meter once and book what it says."""
        with self._lock:
            rows = {row.name: row for row in self._router.snapshot().workers if row.health != "lost"}
            work_s = {name: self._work(row) for name, row in rows.items()}
            for key, meter in self._meters.items():
                try:
                    energy_uj = meter.read_uj()
                except MeterError as error:
                    if self._account.zones[key].error is None:
                        logger.warning("energy of %s: %s", key, error)
                    self._account.failed(key, str(error))
                    self._looked_s.pop(key, None)
                    continue
                now_s = self._now_s()
                before_s = self._looked_s.get(key, now_s)
                self._looked_s[key] = now_s
                for name, share in self._account.book(key, energy_uj, now_s - before_s, work_s).items():
                    if name in rows:
                        self._charge(rows[name].id, share)

    def _work(self, row: WorkerView) -> tuple[float, float]:
        """Turn-seconds of prefill and decode since the last look; the tokens are booked."""
        seen = self._seen.setdefault(row.id, _Seen())
        worked_s = max(0.0, row.prefill_s - seen.prefill_s), max(0.0, row.decode_s - seen.decode_s)
        usage = self._account.workers.get(row.name)
        if usage is not None:
            usage.prompt_tokens += row.prompt_tokens - seen.prompt_tokens
            usage.output_tokens += row.output_tokens - seen.output_tokens
        self._seen[row.id] = _Seen(
            max(row.prefill_s, seen.prefill_s),
            max(row.decode_s, seen.decode_s),
            row.prompt_tokens,
            row.output_tokens,
        )
        return worked_s

    def _charge(self, worker: int, share: Share) -> None:
        """Charge the turns that run now; what nobody took is charged at the next look."""
        prefill_uj = share.prefill_uj + self._owed.pop((worker, "prefill"), 0)
        decode_uj = share.decode_uj + self._owed.pop((worker, "decode"), 0)
        if prefill_uj or decode_uj:
            left = self._router.charge(worker, prefill_uj=prefill_uj, decode_uj=decode_uj)
            self._owed[worker, "prefill"], self._owed[worker, "decode"] = left

    def usage(self, worker: str) -> Usage | None:
        """What a worker used so far; None without a meter."""
        with self._lock:
            usage = self._account.workers.get(worker)
            if usage is None:
                return None
            copy = Usage()
            copy.add(usage)
            return copy

    def told(self) -> dict[str, Any]:
        """Everything, for `/v1/energy`."""
        with self._lock:
            return told(self._account, self._meters, self._missing)

    def exposition(self) -> str:
        """Everything, as Prometheus text."""
        with self._lock:
            return exposition(self._account, self._meters)
