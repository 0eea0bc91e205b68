"""The comparison itself: for each round and policy a fresh door, the same conversations, and what was counted.

Promises: the order of the policies turns with the round, so that a machine that warms up or slows down favours none; KV of
one run is of no use to another, because each has a salt of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conserve.demo.errors import DemoError
from conserve.demo.facts import all_settled
from conserve.supervisor import SupervisorError

from .client import Refused, ask, body, context_limit, served_model, session, token_pool
from .counters import Counted, count
from .errors import LiveError
from .plan import scripts
from .replay import Target, Told, replay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import aiohttp

    from .engines import Engines
    from .plan import LivePlan

__all__ = ["Round", "Site", "run_live", "warm_up"]

_WARM_UP_TOKENS: Final = 64


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
    tell: Callable[[str], None] = lambda _line: None,
    then: Callable[[Site], Awaitable[None]] | None = None,
) -> list[Round]:
    """Starts the engines, runs every policy in every round, and ends them. Before that, `then` may ask them more.

    Raises:
        ConfigError: the plan does not fit the engines.
        LiveError: a process did not start or a server did not answer.
    """
    engines.check(plan.policies)
    try:
        async with session() as http, engines.started(log_dir):
            first = engines.workers[0].url
            model = await served_model(http, first)
            site = Site(
                http=http,
                engines=engines,
                log_dir=log_dir,
                model=model,
                pool=await token_pool(http, first, model),
                context_limit=await context_limit(http, first),
            )
            await warm_up(site)
            rounds = []
            for number in range(plan.rounds):
                shift = number % len(plan.policies)
                for policy in (*plan.policies[shift:], *plan.policies[:shift]):
                    tell(f"round {number + 1} of {plan.rounds}: {policy}")
                    rounds.append(await _round(plan, site, policy, number))
            if then is not None:
                await then(site)
            return rounds
    except (DemoError, SupervisorError, OSError) as error:
        raise LiveError(f"{error}\nThe logs of all processes are in {log_dir}") from error


async def warm_up(site: Site) -> None:
    """One request to each engine: the first one pays for what is made once.

    Raises:
        LiveError: an engine refuses it.
    """
    for worker in site.engines.workers:
        request = body(site.model, site.pool[:1] * _WARM_UP_TOKENS, output=4, salt="warm-up")
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
