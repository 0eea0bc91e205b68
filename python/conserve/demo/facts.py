"""Ask the router and the workers what happened; assume nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import aiohttp

from .agent import Agent, Turn
from .cluster import Cluster
from .errors import DemoError
from .report import ConversationReport, FleetReport, WorkerReport
from .scrape import get_json, get_samples


async def all_joined(
    session: aiohttp.ClientSession, router: str, names: Collection[str], *, timeout_s: float
) -> None:
    """Wait until the router counts every worker in: without its prefiller it would place conversations too.

    Raises:
        DemoError: `timeout_s` passed; the message names the workers that are missing.
    """
    missing = set(names)
    try:
        async with asyncio.timeout(timeout_s):
            while missing:
                fleet = await get_json(session, f"{router}/v1/fleet")
                missing = set(names) - {row["name"] for row in fleet["workers"] if row["health"] == "ready"}
                # The router looks at its workers once a second and has no way to tell us.
                await asyncio.sleep(0.1 if missing else 0)
    except TimeoutError:
        raise DemoError(f"the router does not see {', '.join(sorted(missing))} as ready") from None


async def all_settled(session: aiohttp.ClientSession, router: str, *, timeout_s: float = 10.0) -> None:
    """Wait until no turn is in flight: a client has its `[DONE]` a moment before the router has settled the turn.

    Raises:
        DemoError: a turn is still in flight after `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while (await get_json(session, f"{router}/v1/fleet"))["in_flight"]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise DemoError(
            f"the router still has turns in flight {timeout_s:g} s after the last answer"
        ) from None


async def conversation_report(
    session: aiohttp.ClientSession, cluster: Cluster, agent: Agent, turns: Sequence[Turn], *, by_header: bool
) -> ConversationReport:
    """The turns with what the router says about their conversation.

    A client that sent no id asks by the key that the answers carried.

    Raises:
        DemoError: the router does not know the conversation, or took its turns for several conversations.
    """
    keys = list(dict.fromkeys(turn.answer.headers.get("x-conserve-conversation", "") for turn in turns))
    if len(keys) != 1 or not keys[0]:
        raise DemoError(
            f"conversation {agent.label} was taken for {len(keys)} conversations: {', '.join(keys)}"
        )
    name = agent.id if by_header else keys[0]
    view: Mapping[str, Any] = await get_json(
        session, f"{cluster.router}/v1/conversations/{name}", headers=agent.headers(conversation=False)
    )
    return ConversationReport(
        agent=agent,
        turns=tuple(turns),
        key=keys[0],
        decoder=str(view["decoder"]),
        decoders=tuple(dict.fromkeys(turn.answer.headers.get("x-conserve-decoder", "") for turn in turns)),
        handoffs=sum("x-conserve-prefiller" in turn.answer.headers for turn in turns),
        relocations=sum(turn.answer.headers.get("x-conserve-route") == "relocated" for turn in turns),
        ttfet_s=view["ttfet_s"],
        booked_blocks=int(view["blocks"]),
    )


async def fleet_report(session: aiohttp.ClientSession, cluster: Cluster) -> FleetReport:
    """What the router says about the fleet, with the check of its own books, and each worker about itself."""
    workers = [await worker_report(session, name, url) for name, url in cluster.workers.items()]
    return FleetReport(
        workers=tuple(workers), router=await get_json(session, f"{cluster.router}/v1/fleet?check=true")
    )


async def worker_report(session: aiohttp.ClientSession, name: str, url: str) -> WorkerReport:
    """What one engine has counted since it started."""
    samples = await get_samples(session, url)

    def source(label: str) -> int:
        return round(samples.total("vllm:prompt_tokens_by_source_total", source=label))

    return WorkerReport(
        name=name,
        role="prefiller" if name.startswith("p") else "decoder",
        computed_tokens=source("local_compute"),
        resident_tokens=source("local_cache_hit"),
        pulled_tokens=source("external_kv_transfer"),
        generated_tokens=round(samples.total("vllm:generation_tokens_total")),
        preemptions=round(samples.total("vllm:num_preemptions_total")),
    )
