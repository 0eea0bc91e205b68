"""`/metrics` of a running door has the metrics, kinds and labels that docs/reference/metrics.md lists, whichever door it is."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path

import aiohttp

from conserve_workers.mock import Fault
from tests.doors.metered import Metered
from tests.support.cluster import CHAT, WAIT_S, chat_body

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from metrics_reference import families  # noqa: E402

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
LISTED = {
    name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.+?) \|", PAGE, re.MULTILINE)
    if kind in ("counter", "gauge", "histogram")
}
# The mock publishes no KV events, and two are said only after more traffic than here.
UNSAID = {
    "conserve_link_seconds_per_token",
    "conserve_recommended_prefillers",
    "conserve_kv_blocks_resident",
    "conserve_kv_blocks_resident_idle",
    "conserve_kv_blocks_booked_minus_resident",
}


async def page_with(client: aiohttp.ClientSession, url: str, wanted: set[str]) -> str:
    """The door's page once these metrics have samples."""
    missing = wanted
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        async with client.get(f"{url}/metrics") as answer:
            page = await answer.text()
        missing = {name for name in wanted if families(page)[name].labels is None}
        if not missing:
            return page
        await asyncio.sleep(0.02)  # samples of meters and reports of workers come by themselves
    raise AssertionError(f"no sample of {sorted(missing)}")


async def test_live_page_has_what_the_reference_lists(metered: Metered) -> None:
    url, decoder = metered.url, metered.decoder
    async with aiohttp.ClientSession() as client:
        async with client.post(url + CHAT, json=chat_body("hello " * 2000, stream=True)) as answer:
            assert answer.status == 200
            await answer.read()
        metered.prefiller.arm(Fault(reset_at=5, times=1))
        decoder.arm(Fault(stall_head=True, times=1))
        leaves = asyncio.create_task(client.post(url + CHAT, json=chat_body("bye " * 2000)))
        await decoder.arrived(2, leg="decode")
        leaves.cancel()
        page = await page_with(client, url, set(LISTED) - UNSAID)
    live = families(page)
    silent = {name for name, family in live.items() if family.labels is None}
    assert silent <= UNSAID
    assert {name: family.kind for name, family in live.items()} == {
        name: kind for name, (kind, _) in LISTED.items()
    }
    assert {name: family.labels for name, family in live.items() if name not in silent} == {
        name: labels for name, (_, labels) in LISTED.items() if name not in silent
    }
