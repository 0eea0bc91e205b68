"""What happens to the workers meanwhile: one after the other is killed and comes back, or stands still."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.support.fast_mock import FastMock

PAUSE_S = (0.1, 0.6)
DOWN_S = (0.0, 1.0)
STILL_S = (0.2, 4.0)
"""Up to above the door's time limits, far below the lease."""


async def storm(workers: list[FastMock], chance: random.Random, mishaps: Counter[str]) -> None:
    """Until it is cancelled; whatever it has begun it then undoes."""
    while True:
        await asyncio.sleep(chance.uniform(*PAUSE_S))
        worker = chance.choice(workers)
        if chance.random() < 0.5:
            mishaps["killed and restarted"] += 1
            begun = asyncio.create_task(_kill(worker, chance.uniform(*DOWN_S)))
            try:
                await asyncio.shield(begun)
            finally:
                await begun
        else:
            mishaps["stopped and resumed"] += 1
            worker.stop()
            try:
                await asyncio.sleep(chance.uniform(*STILL_S))
            finally:
                worker.resume()


async def _kill(worker: FastMock, down_s: float) -> None:
    await worker.kill()
    await asyncio.sleep(down_s)
    await worker.start()
