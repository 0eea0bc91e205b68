"""Blocks kept for another worker until it has fetched them, or until their time is over.

Promises: blocks are given back exactly once; while a transfer reads them they are not given back; after that, a
request id is unknown, so nobody can be sent blocks that meanwhile hold something else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class _Lease:
    blocks: list[int]
    tokens: int
    deadline_s: float
    readers: int = 0
    fetched: bool = False


class LeaseTable:
    """Leases by request id; used by the engine and by the threads that send blocks."""

    def __init__(self, *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leases: OrderedDict[str, _Lease] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, request_id: str, blocks: list[int], *, tokens: int, now_s: float) -> None:
        """Keep blocks for `lease_s` seconds from now; they hold the first `tokens` tokens of the request."""
        with self._lock:
            self._leases[request_id] = _Lease(blocks, tokens, now_s + self._lease_s)

    def open(self, request_id: str, *, now_s: float) -> tuple[list[int], int] | None:
        """Begin a transfer: the blocks and their tokens, or None when there is no such lease any more."""
        with self._lock:
            lease = self._leases.get(request_id)
            if lease is None or lease.fetched or lease.deadline_s <= now_s:
                return None
            lease.readers += 1
            return lease.blocks, lease.tokens

    def close(self, request_id: str, *, fetched: bool) -> list[int]:
        """End a transfer. Returns the blocks to give back: all of them once they were fetched, else none."""
        with self._lock:
            lease = self._leases[request_id]
            lease.readers -= 1
            lease.fetched = lease.fetched or fetched
            if not lease.fetched or lease.readers:
                return []
            del self._leases[request_id]
            return lease.blocks

    def expire(self, *, now_s: float) -> list[list[int]]:
        """Take out the leases whose time is over and that nobody reads; returns each one's blocks."""
        with self._lock:
            over = [
                name
                for name, lease in self._leases.items()
                if lease.deadline_s <= now_s and lease.readers == 0
            ]
            return [self._leases.pop(name).blocks for name in over]

    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do next, if ever."""
        with self._lock:
            return min(
                (lease.deadline_s for lease in self._leases.values() if lease.readers == 0), default=None
            )
