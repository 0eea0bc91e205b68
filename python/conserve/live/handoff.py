"""A handoff without a door, as NIXL's connector takes it: one engine computes a prompt, another fetches its KV and answers."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from .client import Answer, Refused, ask, body
from .counters import fetched_tokens
from .errors import LiveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .engines import Engines, Worker
    from .run import Site

__all__ = ["WARM_UP_TOKENS", "hand_over", "pairs", "warm_up_handoffs"]

_ASKED: Final = {"do_remote_decode": True, "do_remote_prefill": False}
_TIMEOUT_S: Final = 600.0
WARM_UP_TOKENS: Final = 64
"""The prompt of a request that only makes what is made once."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Who may hand over to whom."""

    giver: Worker
    taker: Worker


def pairs(engines: Engines, policies: Sequence[str]) -> list[Pair]:
    """Every pair between which some policy may hand over; none where the connector is not NIXL's."""
    if "nixl" not in engines.connector:
        return []
    found = {}
    for policy in policies:
        if not engines.hands_over(policy):
            continue
        for giver, taker in permutations(engines.workers, 2):
            if giver.role_under(policy) != "decoder" and taker.role_under(policy) != "prefiller":
                found[giver.name, taker.name] = Pair(giver, taker)
    return list(found.values())


async def hand_over(site: Site, pair: Pair, prompt: Sequence[int]) -> Answer:
    """The taker's answer to a prompt that the giver computed.

    Raises:
        Refused: one of them did not serve.
        LiveError: the giver keeps nothing for others.
    """
    asked = body(site.model, prompt, output=1, salt=uuid.uuid4().hex)
    params = await _prefilled(site.http, pair.giver, asked)
    return await ask(site.http, pair.taker.url, {**asked, "kv_transfer_params": params}, timeout_s=_TIMEOUT_S)


async def warm_up_handoffs(site: Site, wanted: Sequence[Pair]) -> None:
    """One handoff between each pair: two engines that meet for the first time shake hands first.

    Raises:
        LiveError: KV cannot be handed over between two of them.
    """
    left = list(wanted)
    while left:
        # Each engine in one handoff at a time, so that what one pair shows is its own.
        now: list[Pair] = []
        for pair in left:
            if not {pair.giver.name, pair.taker.name} & {name for one in now for name in _names(one)}:
                now.append(pair)
        left = [pair for pair in left if pair not in now]
        await asyncio.gather(*(_met(site, pair) for pair in now))


def _names(pair: Pair) -> tuple[str, str]:
    return pair.giver.name, pair.taker.name


async def _met(site: Site, pair: Pair) -> None:
    before = await fetched_tokens(site.http, pair.taker)
    try:
        await hand_over(site, pair, site.pool[:1] * WARM_UP_TOKENS)
    except Refused as refused:
        raise LiveError(f"{pair.giver.name} cannot hand over to {pair.taker.name}: {refused}") from refused
    if await fetched_tokens(site.http, pair.taker) == before:
        raise LiveError(
            f"{pair.taker.name} at {pair.taker.url} computed what {pair.giver.name} had handed over to it: start it with "
            "--kv-transfer-config (`conserve up --dry-run` shows one), or compare with --connector none"
        )


async def _prefilled(http: aiohttp.ClientSession, giver: Worker, asked: dict[str, object]) -> object:
    request = {key: value for key, value in asked.items() if key not in ("stream", "stream_options")} | {
        "kv_transfer_params": _ASKED
    }
    async with http.post(
        f"{giver.url}/v1/completions", json=request, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
    ) as response:
        if response.status != 200:
            raise Refused(f"{response.status}: {(await response.text())[:300]}")
        told: dict[str, Any] = await response.json()
    if not told.get("kv_transfer_params"):
        raise LiveError(
            f"{giver.name} at {giver.url} keeps no KV for others: start it with --kv-transfer-config "
            "(`conserve up --dry-run` shows one), or compare with --connector none"
        )
    return told["kv_transfer_params"]
