"""Asks each worker how it is and tells the router: who joined, who is lost, who was restarted, how full they are.

Each worker has a task of its own, so that one that hangs delays nobody. A worker joins with its first healthy answer and,
when it comes back after a loss, joins again as a new worker: the KV it had is gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import aiohttp

from conserve.errors import ConfigError
from conserve.settings import Role, Settings, WorkerAt

from .events import Ears
from .report import Report
from .upstream import TooLargeError, Upstreams, is_ours, said

if TYPE_CHECKING:
    from conserve._core import Dispatcher, Router

__all__ = ["Watch", "Watched"]

logger = logging.getLogger(__name__)

_MODELS_EVERY: Final = 10
# A worker without a name is called by its role and its place in the settings, whichever answers first.
_LETTERS: Final[dict[Role, str]] = {"prefiller": "p", "decoder": "d", "both": "w"}
_Lost: TypeAlias = Literal["refused", "silent", "restarted"]


class Watched:
    """One worker as the watch knows it."""

    __slots__ = (
        "at",
        "events",
        "failures",
        "id",
        "last_error",
        "models",
        "name",
        "probes",
        "report",
        "role",
        "warned",
    )

    def __init__(self, role: Role, at: WorkerAt, name: str) -> None:
        self.role: Role = role
        self.at = at
        self.name = name
        self.id: int | None = None
        self.failures = 0
        self.probes = 0
        self.last_error: str | None = None
        self.models: list[dict[str, Any]] = []
        self.report = Report()
        self.events: asyncio.Task[None] | None = None
        self.warned: set[str] = set()

    @property
    def label(self) -> str:
        """How logs call it."""
        return f"{self.role} {self.name}"


class Watch:
    """Watches every worker of one router. Raises ConfigError for workers that could never join."""

    def __init__(self, router: Router, dispatcher: Dispatcher, settings: Settings) -> None:
        self._router = router
        self._dispatcher = dispatcher
        self._settings = settings
        self._upstreams: Upstreams | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ears = Ears(router)
        self._headers: dict[str, str] = {}
        if settings.worker_key is not None:
            self._headers["authorization"] = f"Bearer {settings.worker_key.get_secret_value()}"
        self.workers: list[Watched] = []
        known: dict[str, Watched] = {}
        for role, at in settings.workers():
            at.worker(role)
            if at.kv_events is not None:
                Ears.require(at.url)
            if at.url in known:
                raise ConfigError(
                    f"worker {at.url} is given twice; one that prefills and decodes goes under both"
                )
            place = sum(each.role == role for each in self.workers)
            known[at.url] = Watched(role, at, at.name or f"{_LETTERS[role]}{place}")
            self.workers.append(known[at.url])
        for row in router.snapshot().workers:
            if row.health == "lost":
                continue
            url = row.url.rstrip("/")
            if url not in known:
                at = WorkerAt(url, name=row.name, tier=row.tier, kv_blocks=row.kv_blocks)
                known[url] = Watched(row.role, at, row.name)
                self.workers.append(known[url])
            known[url].id = row.id
            known[url].name = row.name

    async def start(self, upstreams: Upstreams) -> None:
        """Probe every worker once, then go on probing until `stop`."""
        self._upstreams = upstreams
        await asyncio.gather(*(self._try_probe(watched) for watched in self.workers))
        self._tasks = [asyncio.create_task(self._keep_probing(watched)) for watched in self.workers]

    async def stop(self) -> None:
        """Stop probing and hearing."""
        tasks = self._tasks + [each.events for each in self.workers if each.events is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        for watched in self.workers:
            watched.events = None
        self._ears.close()

    def models(self) -> list[dict[str, Any]]:
        """The models of the workers that have joined, each once, with the smallest `max_model_len` told for it."""
        merged: dict[str, dict[str, Any]] = {}
        for watched in self.workers:
            if watched.id is None:
                continue
            for card in watched.models:
                known = merged.setdefault(card["id"], dict(card))
                lengths = [each["max_model_len"] for each in (known, card) if "max_model_len" in each]
                if lengths:
                    known["max_model_len"] = min(lengths)
        return list(merged.values())

    async def _keep_probing(self, watched: Watched) -> None:
        while True:
            await asyncio.sleep(self._settings.probe_interval_s)
            await self._try_probe(watched)

    async def _try_probe(self, watched: Watched) -> None:
        """Probe; whatever one worker answers, the others and the door go on."""
        try:
            await self._probe(watched)
        except Exception:
            logger.exception("%s: the probe itself failed", watched.label)

    async def _probe(self, watched: Watched) -> None:
        try:
            if watched.id is None or not watched.models or watched.probes % _MODELS_EVERY == 0:
                watched.models = _cards(await self._get(watched, "/v1/models"))
            await self._get(watched, "/health")
            metrics = await self._told(watched)
        except _NO_ANSWER as error:
            self._failed(watched, error)
            return
        watched.probes += 1
        report = watched.report if metrics is None else Report.read(metrics)
        if self._is_another(watched, report):
            await self._probe(watched)
        else:
            self._answered(watched, report, metrics)

    async def _told(self, watched: Watched) -> bytes | None:
        """What a worker tells of itself. One that is there and healthy is not lost for telling nothing: None; its report ages."""
        try:
            metrics = await self._get(watched, "/metrics")
        except _NO_ANSWER as error:
            if watched.id is None:
                raise
            if "metrics" not in watched.warned:
                watched.warned.add("metrics")
                logger.warning("%s does not tell its load any more: %s", watched.label, said(error))
            return None
        watched.warned.discard("metrics")
        return metrics

    async def _get(self, watched: Watched, path: str) -> bytes:
        if self._upstreams is None:
            raise RuntimeError("the watch was not started")
        url = watched.at.url + path
        status, body = await self._upstreams.get(
            url, timeout_s=self._settings.probe_timeout_s, headers=self._headers
        )
        if status != 200:
            raise _UnhealthyError(f"GET {path} answered {status}")
        return body

    def _failed(self, watched: Watched, error: Exception) -> None:
        watched.last_error = said(error)
        if is_ours(error):
            # A worker that is lost costs every pin that it has.
            logger.warning("%s could not be asked: %s", watched.label, watched.last_error)
            return
        watched.failures += 1
        if watched.id is None:
            if watched.failures == 1:
                logger.warning("%s is not there yet: %s", watched.label, watched.last_error)
            return
        refused = isinstance(error, aiohttp.ClientConnectorError) and isinstance(
            error.os_error, ConnectionRefusedError
        )
        if refused or watched.failures >= self._settings.probe_failures:
            self._lose(watched, "refused" if refused else "silent", watched.last_error)
        else:
            logger.warning("%s failed probe %d: %s", watched.label, watched.failures, watched.last_error)
            self._router.suspect(watched.id, True)

    def _lose(self, watched: Watched, reason: _Lost, why: str) -> None:
        if watched.id is not None:
            logger.warning("%s (worker %d) is lost: %s", watched.label, watched.id, why)
            self._router.lose(watched.id, reason=reason)
            self._follow_no_more(watched)
            watched.id = None
            watched.models = []
            self._tell_models()

    def _is_another(self, watched: Watched, report: Report) -> bool:
        """Whether what answers is not the worker that joined: it was restarted, or lost by a turn meanwhile."""
        if watched.id is None:
            return False
        if watched.id not in self._health():
            logger.warning("%s (worker %d) was lost in use and answers again", watched.label, watched.id)
            self._follow_no_more(watched)
            watched.id = None
            return True
        if watched.report.restarted(report):
            self._lose(watched, "restarted", "it was restarted")
            return True
        return False

    def _answered(self, watched: Watched, report: Report, metrics: bytes | None) -> None:
        joined = watched.id is None
        if watched.id is None:
            named = dataclasses.replace(watched.at, name=watched.name)
            watched.id = self._router.join(named.worker(watched.role))
        elif watched.failures or self._suspected(watched.id):
            self._router.suspect(watched.id, False)
        watched.failures = 0
        watched.last_error = None
        watched.report = report
        if metrics is not None:
            self._router.observe_metrics(watched.id, metrics)
        lengths = [card["max_model_len"] for card in watched.models if "max_model_len" in card]
        if lengths:
            self._router.observe(watched.id, max_model_len=max(lengths))
        self._follow(watched, watched.id)
        if joined:
            self._tell_models()
            told = report.describe(watched.models)
            logger.info("%s joined as worker %d at %s: %s", watched.label, watched.id, watched.at.url, told)
        self._warn(watched)

    def _follow(self, watched: Watched, worker: int) -> None:
        """Hear the KV events of a worker that is there, unless they are heard already."""
        at = watched.at
        if at.kv_events is not None and watched.events is None:
            heard = self._ears.follow(worker, label=watched.label, events=at.kv_events, replay=at.kv_replay)
            watched.events = asyncio.create_task(heard)
            watched.events.add_done_callback(lambda task: _say_failure(task, watched.label))

    def _follow_no_more(self, watched: Watched) -> None:
        if watched.events is not None:
            watched.events.cancel()
            watched.events = None

    def _suspected(self, worker: int) -> bool:
        return self._health().get(worker) == "suspect"

    def _health(self) -> dict[int, str]:
        """The health of each worker that is not lost."""
        return {row.id: row.health for row in self._router.snapshot().workers if row.health != "lost"}

    def _tell_models(self) -> None:
        self._dispatcher.set_models([card["id"] for card in self.models()])

    def _warn(self, watched: Watched) -> None:
        """Say once what will make the router's books differ from the worker's."""
        said = watched.report
        expected = watched.at.block_size or self._settings.block_size
        if (
            said.block_size not in (None, expected)
            and watched.role != "prefiller"
            and "block" not in watched.warned
        ):
            watched.warned.add("block")
            logger.warning(
                "%s has blocks of %d tokens, the router expected %d: set block_size=%d",
                watched.label, said.block_size, expected, said.block_size,
            )  # fmt: skip
        no_capacity = said.kv_blocks is None and watched.at.kv_blocks is None and watched.role != "prefiller"
        if no_capacity and "capacity" not in watched.warned:
            watched.warned.add("capacity")
            logger.warning(
                "%s does not tell its KV capacity (vllm:cache_config_info): it gets no conversations; give kv_blocks",
                watched.label,
            )


def _say_failure(task: asyncio.Task[None], label: str) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s: its KV events are followed no more", label, exc_info=error)


class _UnhealthyError(Exception):
    """A worker answered a probe, and the answer was no."""


# What stands for an answer that did not come or says no.
_NO_ANSWER: Final = (aiohttp.ClientError, OSError, TimeoutError, TooLargeError, _UnhealthyError)


def _cards(body: bytes) -> list[dict[str, Any]]:
    """The models in an answer, each checked as far as others rely on it; raises _UnhealthyError."""
    try:
        cards = json.loads(body, parse_constant=_no_number)["data"]
        found = [card for card in cards if isinstance(card["id"], str)]
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair cannot be told to anybody
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise _UnhealthyError("GET /v1/models did not answer a list of models") from cause
    for card in found:
        length = card.get("max_model_len")
        if type(length) is not int or not 0 < length < 2**32:
            card.pop("max_model_len", None)
    return found


def _no_number(name: str) -> float:
    raise ValueError(name)
