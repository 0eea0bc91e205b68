"""One run: a door, workers, agents and a storm; afterwards nothing may be left of them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.fast_mock import FastMock

from .agents import Tally, Work, agent
from .processes import DoorProcess
from .storm import storm

IDLE_S = 5
"""After so long a conversation that nobody closed is given up by the door."""
END_S = 90.0
"""For the door to be rid of everything."""
SPARE_MIB = 64.0
"""Memory the door may keep over its start; see README.md for where it is."""
AGAIN_MIB = 16.0
"""What it may add in a second wave, which finds all pools filled."""
SPARE_SOCKETS = 4
"""Probes under way when the sockets are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much of it."""

    door: str
    conversations: int
    turns: int
    at_once: int = 256
    limit_s: float = 240.0
    """Turns that have not begun by then are left out."""
    prefillers: int = 2
    decoders: int = 4


async def run(size: Size, *, seed: int) -> dict[str, Any]:
    """Everything that was seen; `failures` is empty when all is well."""
    chance = random.Random(seed)
    fleet = {f"p{place}": "prefiller" for place in range(size.prefillers)}
    fleet |= {f"d{place}": "decoder" for place in range(size.decoders)}
    named = {name: FastMock("--role", role, "--blocks", "200000") for name, role in fleet.items()}
    workers = list(named.values())
    tally, mishaps = Tally(), Counter[str]()
    failures: list[str] = []
    again = dataclasses.replace(size, conversations=size.conversations // 4)
    with tempfile.TemporaryDirectory(prefix="conserve-stress-") as folder:
        await asyncio.gather(*(worker.start() for worker in workers))
        door = DoorProcess(Path(folder), _options(size, named))
        try:
            await door.start()
            await _until(door, lambda fleet: not fleet["away"], "the workers never joined")
            sockets = door.sockets()
            await _drive(door, dataclasses.replace(size, conversations=32, turns=2), Tally(), chance)
            start = _look(door) | {"sockets": sockets}
            began = time.monotonic()
            storms = [asyncio.create_task(storm(workers[half::2], chance, mishaps)) for half in (0, 1)]
            try:
                peak = await _drive(door, size, tally, chance)
                full_mib = door.rss_mib()
                await _drive(door, again, tally, chance)
                grown_mib = door.rss_mib() - full_mib
            finally:
                for each in storms:
                    each.cancel()
                await asyncio.gather(*storms, return_exceptions=True)
            took_s = time.monotonic() - began
            for worker in workers:
                await worker.kill()
                await worker.start()
            failures += await _aftermath(door, workers, start)
            end = _look(door)
        finally:
            status = await door.end()
            for worker in workers:
                worker.resume()
                await worker.kill()
        if status != 0:
            failures.append(f"the door ended with status {status}: {door.log()}")
    failures += [f"{count} x {what}" for what, count in tally.broken.items()]
    if end["rss_mib"] > start["rss_mib"] + SPARE_MIB:
        failures.append(f"memory grew from {start['rss_mib']:.0f} to {end['rss_mib']:.0f} MiB")
    if grown_mib > AGAIN_MIB:
        failures.append(f"a second wave grew memory by {grown_mib:.0f} MiB more")
    if tally.ended["served"] < tally.requests / 2:
        failures.append(f"only {tally.ended['served']} of {tally.requests} requests were served")
    took = sorted(tally.took_s) or [0.0]
    return {
        **dataclasses.asdict(size),
        "seed": seed,
        "took_s": round(took_s, 1),
        "requests": tally.requests,
        "planned": (size.conversations + again.conversations) * size.turns,
        "sent_mib": round(tally.sent_bytes / 2**20, 1),
        "ended": dict(tally.ended.most_common()),
        "mishaps": dict(mishaps),
        "latency_s": {
            f"p{share}": round(took[min(len(took) - 1, len(took) * share // 100)], 4)
            for share in (50, 99, 100)
        },
        "rss_mib": {
            "start": start["rss_mib"],
            "peak": peak,
            "again": round(grown_mib, 1),
            "end": end["rss_mib"],
        },
        "sockets": {"start": start["sockets"], "end": end["sockets"]},
        "failures": failures,
    }


def _options(size: Size, workers: dict[str, FastMock]) -> list[str]:
    options = ["--door", size.door, "--log-level", "error", "--energy", "off"]
    for name, worker in workers.items():
        kind = "--prefiller" if name.startswith("p") else "--decoder"
        options += [kind, f"{worker.url},name={name}"]
    times = {
        "prefill-timeout-s": 3,
        "first-byte-timeout-s": 3,
        "answer-timeout-s": 3,
        "stream-idle-timeout-s": 3,
        "queue-timeout-s": 10,
        "probe-interval-s": 0.5,
        "idle-timeout-s": IDLE_S,
    }
    return options + [word for name, value in times.items() for word in (f"--{name}", str(value))]


async def _drive(door: DoorProcess, size: Size, tally: Tally, chance: random.Random) -> float:
    """All agents to their end; the most memory the door had meanwhile, in MiB."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        until = time.monotonic() + size.limit_s
        work = Work(door.url, http, asyncio.Semaphore(size.at_once), tally, until)
        agents = asyncio.gather(
            *(
                agent(work, place, size.turns, random.Random(chance.random()))
                for place in range(size.conversations)
            )
        )
        peak = door.rss_mib()
        while not agents.done():
            await asyncio.wait({agents}, timeout=0.5)
            peak = max(peak, door.rss_mib())
        await agents
    return round(peak, 1)


async def _aftermath(door: DoorProcess, workers: list[FastMock], start: dict[str, Any]) -> list[str]:
    """What is left and should not be."""
    found = []
    steps = {
        "a worker never came back": lambda fleet: not fleet["away"],
        "a request is still under way": lambda fleet: not (fleet["in_flight"] or fleet["waiting"]),
        "the books do not balance": lambda fleet: fleet["check"] == "ok",
        "a conversation is still there": lambda fleet: fleet["conversations"] == 0,
        "blocks are still booked": lambda fleet: (
            fleet["booked_blocks"] == 0
            and not any(
                row["reserved_blocks"] or row["running"] or row["queued_tokens"] for row in fleet["workers"]
            )
        ),
    }
    for what, holds in steps.items():
        try:
            await _until(door, holds, what)
        except AssertionError as error:
            found.append(str(error))
    for worker in workers:
        await worker.kill()
    most = start["sockets"] + SPARE_SOCKETS
    try:
        async with asyncio.timeout(END_S):
            while door.sockets() > most:  # noqa: ASYNC110 - another process's sockets announce nothing
                await asyncio.sleep(0.2)
    except TimeoutError:
        found.append(f"{door.sockets()} sockets are open, {start['sockets']} were at the start")
    return found


async def _until(door: DoorProcess, holds: Any, what: str) -> None:
    fleet: dict[str, Any] = {}
    try:
        async with asyncio.timeout(END_S):
            while not holds(fleet := await door.fleet()):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{what}: {fleet}") from None


def _look(door: DoorProcess) -> dict[str, Any]:
    return {"rss_mib": round(door.rss_mib(), 1), "sockets": door.sockets()}
