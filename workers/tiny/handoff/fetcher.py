"""The decoder's end: fetch a prompt's blocks into our own, in the background."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

from conserve_workers.tiny.errors import HandoffError
from conserve_workers.tiny.handoff import wire
from conserve_workers.tiny.kv.store import KvStore
from conserve_workers.tiny.request import RemotePrefill

_CONNECT_S = 2.0
_THREADS = 8


class Fetcher:
    """Fetches run on a few threads; `on_end` is called from them with the bytes that came, or with an error."""

    def __init__(
        self, *, store: KvStore, timeout_s: float, on_end: Callable[[str, int, str | None], None]
    ) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="handoff-fetch")
        self._lock = threading.Lock()
        self._open: dict[str, socket.socket | None] = {}

    def start(self, request_id: str, remote: RemotePrefill, *, first: int, blocks: Sequence[int]) -> None:
        """Fill `blocks` with the remote request's blocks from number `first` on. With no blocks, only tell it we are done."""
        with self._lock:
            self._open[request_id] = None
        self._threads.submit(self._run, request_id, remote, first, list(blocks))

    def cancel(self, request_id: str) -> None:
        """Break a fetch off; `on_end` still comes."""
        with self._lock:
            connection = self._open.pop(request_id, None)
            if connection is not None:
                _shut(connection)

    def close(self) -> None:
        """Break all fetches off."""
        for request_id in list(self._open):
            self.cancel(request_id)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, request_id: str, remote: RemotePrefill, first: int, blocks: list[int]) -> None:
        error: str | None = None
        received = 0
        try:
            received = self._fetch(request_id, remote, first, blocks)
        except (OSError, HandoffError, ValueError) as cause:
            error = f"cannot fetch the prompt's KV blocks from {remote.host}:{remote.port}: {cause}"
        except Exception as cause:  # noqa: BLE001 - the engine waits for an end, whatever it is
            error = f"cannot store the prompt's KV blocks: {cause!r}"
        with self._lock:
            self._open.pop(request_id, None)
        self._on_end(request_id, received, error)

    def _fetch(self, request_id: str, remote: RemotePrefill, first: int, blocks: list[int]) -> int:
        with socket.create_connection((remote.host, remote.port), timeout=_CONNECT_S) as connection:
            with self._lock:
                if request_id not in self._open:
                    raise HandoffError("the request was aborted")
                self._open[request_id] = connection
            connection.settimeout(self._timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.send(
                connection,
                {
                    "engine_id": remote.engine_id,
                    "request_id": remote.request_id,
                    "tokens": remote.tokens,
                    "first": first,
                    "count": len(blocks),
                },
            )
            header, _size = wire.receive(connection)
            if header.get("ok") is not True:
                raise HandoffError(str(header.get("message")))
            received = self._receive(connection, header, blocks)
            wire.send(connection, {"done": True})
            return received

    def _receive(self, connection: socket.socket, header: dict[str, object], blocks: list[int]) -> int:
        store = self._store
        if header.get("dtype") != str(store.tensor.dtype) or header.get("block") != store.shape:
            raise HandoffError(
                f"its blocks are {header.get('block')} of {header.get('dtype')}, ours {store.shape} of "
                f"{store.tensor.dtype}; prefiller and decoder need the same model and block size"
            )
        filled = 0
        received = 0
        buffer = bytearray(min(len(blocks), wire.blocks_in_a_piece(store.block_bytes)) * store.block_bytes)
        while filled < len(blocks):
            piece, size = wire.receive(connection, into=memoryview(buffer))
            count = piece.get("count")
            if (
                piece.get("first") != filled
                or not isinstance(count, int)
                or size != count * store.block_bytes
                or count < 1
            ):
                raise HandoffError("it sent other blocks than those asked for")
            part = blocks[filled : filled + count]
            if len(part) != count:
                raise HandoffError("it sent more blocks than were asked for")
            values = torch.frombuffer(
                buffer, dtype=store.tensor.dtype, count=size // store.tensor.element_size()
            )
            layers, two, heads, tokens, dim = store.shape
            store.write(part, values.view(layers, two, heads, count, tokens, dim))
            filled += count
            received += size
        return received


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended by itself
        connection.shutdown(socket.SHUT_RDWR)
