"""The comparison itself: for each round and policy a fresh door, the same conversations, and what was counted.

Promises: the order of the policies turns with the round, so that a machine that warms up or slows down favours none; KV of
one run is of no use to another, because each has a salt of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from conserve.demo.errors import DemoError
from conserve.demo.facts import all_settled
from conserve.supervisor import SupervisorError

from .client import Refused, ask, body, served_model, session, token_pool
from .counters import Counted, count
from .errors import LiveError
from .handoff import WARM_UP_TOKENS, pairs, warm_up_handoffs
from .idle import until_idle
from .plan import scripts
from .replay import Target, Told, replay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from conserve.supervisor import Fleet, WorkerProcess

    from .engines import Engines
    from .plan import LivePlan

__all__ = ["Round", "Site", "run_live", "unless_ended", "warm_up"]

# So long an engine that cuts its connections has to be told as ended.
_EXIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Round:
    """One policy in one round."""

    policy: str
    number: int
    seed: int
    told: list[Told]
    counted: Counted


@dataclass(frozen=True, slots=True)
class Site:
    """Engines that are up: what their prompts are made of, and how long one may be."""

    http: aiohttp.ClientSession
    engines: Engines
    log_dir: Path
    model: str
    pool: list[int]
    context_limit: int


async def run_live(
    plan: LivePlan,
    engines: Engines,
    *,
    log_dir: Path,
    rounds: list[Round],
    tell: Callable[[str], None] = lambda _line: None,
    then: Callable[[Site], Awaitable[None]] | None = None,
) -> None:
    """Starts the engines, runs every policy in every round, and ends them. Before that, `then` may ask them more.

    `rounds` takes what was run as it ends, so that nothing of it is lost whatever comes after.

    Raises:
        ConfigError: the plan does not fit the engines.
        LiveError: a process did not start, or ended too early, or a server did not answer.
    """
    engines.check(plan.policies)
    plan.check_trace()
    try:
        async with session() as http, engines.started(log_dir, tell=tell) as fleet:
            await unless_ended(fleet, _all(plan, engines, http, log_dir, rounds, tell, then))
    except LiveError as error:
        raise LiveError(f"{error}\nThe logs of all processes are in {log_dir}") from error
    except (DemoError, SupervisorError, OSError, aiohttp.ClientError) as error:
        raise LiveError(
            f"{str(error) or 'a process did not answer in time'}\nThe logs of all processes are in {log_dir}"
        ) from error


async def _all(
    plan: LivePlan,
    engines: Engines,
    http: aiohttp.ClientSession,
    log_dir: Path,
    rounds: list[Round],
    tell: Callable[[str], None],
    then: Callable[[Site], Awaitable[None]] | None,
) -> None:
    served = [await served_model(http, worker.url) for worker in engines.workers]
    model = served[0][0]
    site = Site(
        http=http,
        engines=engines,
        log_dir=log_dir,
        model=model,
        pool=await token_pool(http, engines.workers[0].url, model),
        context_limit=min(limit for _, limit in served),
    )
    await warm_up(site)
    await warm_up_handoffs(site, pairs(engines, plan.policies))
    for number in range(plan.rounds):
        shift = number % len(plan.policies)
        for policy in (*plan.policies[shift:], *plan.policies[:shift]):
            tell(f"round {number + 1} of {plan.rounds}: {policy}")
            await until_idle(http, engines, tell=tell)
            rounds.append(await _round(plan, site, policy, number))
    if then is not None:
        await until_idle(http, engines, tell=tell)
        await then(site)


async def unless_ended(fleet: Fleet, work: Coroutine[None, None, None]) -> None:
    """Does the work, but not without the processes that it is done on.

    Raises:
        LiveError: one of the fleet ended first.
    """
    doing = asyncio.create_task(work)
    waits: list[asyncio.Task[None] | asyncio.Task[WorkerProcess]] = [doing]
    if fleet.processes:  # There are none where workers run already.
        waits.append(asyncio.create_task(fleet.first_exit()))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if doing.done() and doing.exception() is not None and len(waits) > 1:
            # A process that ends cuts its connections first: which of the two is heard first is chance.
            await asyncio.wait(waits[1:], timeout=_EXIT_S)
        ended = [process for process in fleet.processes.values() if process.returncode is not None]
        if ended and not (doing.done() and doing.exception() is None):
            raise LiveError(f"{ended[0].name} ended with status {ended[0].returncode} in the middle")
        await doing
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def warm_up(site: Site) -> None:
    """One request to each engine: the first one pays for what is made once.

    Raises:
        LiveError: an engine refuses it.
    """
    for worker in site.engines.workers:
        request = body(site.model, site.pool[:1] * WARM_UP_TOKENS, output=4, salt="warm-up")
        try:
            await ask(site.http, worker.url, request, timeout_s=600)
        except Refused as refused:
            raise LiveError(f"{worker.name} at {worker.url} does not serve: {refused}") from refused


async def _round(plan: LivePlan, site: Site, policy: str, number: int) -> Round:
    tasks = plan.tasks(number, context_limit=site.context_limit)
    work = scripts(tasks, plan.arrivals_s(number, len(tasks)))
    async with site.engines.door(policy, site.http, site.log_dir) as door:
        before = await count(site.http, door, site.engines.workers)
        target = Target(
            http=site.http,
            url=door,
            model=site.model,
            pool=site.pool,
            seed=plan.seed_of(number),
            salt=f"{policy} {number} {plan.seed}",
            timeout_s=plan.turn_timeout_s,
        )
        told = await replay(target, work)
        await all_settled(site.http, door)
        counted = (await count(site.http, door, site.engines.workers)).since(before)
    return Round(policy, number, plan.seed_of(number), told, counted)
