"""Everything goes wrong at once: no request hangs, no answer is cut without a word, and in the end the books balance."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import aiohttp

from tests.support.cluster import CHAT, Answer, Cluster, chat_body

from .conftest import StartCluster

LONG = "a long task description " * 30
AGENTS = 40
TURNS = 4


def fault(chance: random.Random) -> dict[str, object]:
    """What befalls one request; mostly nothing."""
    kind = chance.choice(
        ["none"] * 6 + ["latency", "status", "reset", "close", "garbage", "stall", "no_done", "split"]
    )
    faults: dict[str, dict[str, object]] = {
        "none": {},
        "latency": {"latency_s": chance.random() * 0.05, "interval_s": 0.001},
        "status": {"status": chance.choice([400, 429, 500, 503])},
        "reset": {"reset_at": chance.randrange(2_000)},
        "close": {"close_at": chance.randrange(2_000)},
        "garbage": {"body": "{]"},
        "stall": {"stall_at": chance.randrange(2_000)},
        "no_done": {"no_done": True},
        "split": {"split": chance.randrange(1, 40)},
    }
    return faults[kind]


async def agent(c: Cluster, name: str, chance: random.Random, seen: Counter[str]) -> None:
    history = [LONG]
    for turn in range(TURNS):
        body = chat_body(*history, stream=chance.random() < 0.7, max_tokens=8)
        headers = {"x-mock-fault": json.dumps(fault(chance) | {"leg": chance.choice(["prefill", "decode"])})}
        asking = asyncio.create_task(c.post(body, conversation=name, headers=headers))
        if chance.random() < 0.1:
            await asyncio.wait({asking}, timeout=chance.random() * 0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            seen["left"] += 1
            continue
        answer = await asking
        seen[outcome(answer)] += 1
        if answer.status == 200 and outcome(answer) == "served":
            history += [answer.text, f"output {turn}"]


def outcome(answer: Answer) -> str:
    if answer.status != 200:
        assert "error" in answer.json, answer.body[:200]
        return f"refused {answer.status}"
    if answer.headers["content-type"].startswith("text/event-stream"):
        last = answer.body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
        assert last == b"data: [DONE]" or b'"error"' in last, f"a silent cut: {last!r}"
        return "served" if last == b"data: [DONE]" else "broken off"
    return "served" if "choices" in answer.body.decode() else "garbage"


async def workers_come_and_go(c: Cluster, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(0.1 + chance.random() * 0.2)
        mock = chance.choice(c.workers)
        await mock.stop()
        await asyncio.sleep(chance.random() * 0.1)
        await mock.start()


async def test_with_everything_failing_at_random_the_books_balance(cluster: StartCluster) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    async with cluster(
        prefillers=2,
        decoders=3,
        prefill_timeout_s=0.3,
        first_byte_timeout_s=0.3,
        answer_timeout_s=0.3,
        stream_idle_timeout_s=0.3,
        queue_timeout_s=1.0,
    ) as c:
        storm = asyncio.create_task(workers_come_and_go(c, chance))
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(agent(c, f"agent-{place}", chance, seen) for place in range(AGENTS)))
        finally:
            storm.cancel()
            await asyncio.gather(storm, return_exceptions=True)
        print(dict(seen))
        assert sum(seen.values()) == AGENTS * TURNS
        for mock in c.workers:
            if mock._server is None:
                await mock.start()
        await c.until_fleet(lambda fleet: len(fleet["workers"]) == 5)
        calm = await asyncio.gather(*(c.chat("hi", conversation=f"calm-{place}") for place in range(AGENTS)))
        assert [answer.status for answer in calm] == [200] * AGENTS, "the storm left nothing broken"
        await c.settled()
        assert not any(leg.stale for mock in c.decoders for leg in mock.legs("decode"))
        for place in range(AGENTS):
            await c.delete(f"/v1/conversations/agent-{place}")
            await c.delete(f"/v1/conversations/calm-{place}")
        await c.nothing_booked()
        async with aiohttp.ClientSession() as http, http.post(c.url + CHAT, json=chat_body(LONG)) as after:
            assert after.status == 200
