"""Frames on a handoff connection: four magic bytes, two lengths, a JSON header, raw bytes.

    magic "CKV1" | u32 header bytes | u64 payload bytes | header | payload

Both lengths are checked against limits before anything is read, so that a stranger's bytes cost nothing.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from conserve_workers.tiny.errors import HandoffError

_PREFIX = struct.Struct("!4sIQ")
_MAGIC = b"CKV1"
_MOST_HEADER = 64 * 1024
_PIECE_BYTES = 8 * 1024 * 1024


def blocks_in_a_piece(block_bytes: int) -> int:
    """Blocks that travel in one frame, so that neither end holds a whole prompt twice."""
    return max(1, _PIECE_BYTES // block_bytes)


def send(connection: socket.socket, header: dict[str, Any], payload: memoryview | None = None) -> None:
    """Write one frame; blocks until the kernel has it, each part bounded by the socket's timeout."""
    encoded = json.dumps(header).encode()
    size = 0 if payload is None else payload.nbytes
    if len(encoded) > _MOST_HEADER:
        raise HandoffError(f"a header of {len(encoded)} bytes is over the limit")
    connection.sendall(_PREFIX.pack(_MAGIC, len(encoded), size) + encoded)
    if payload is not None:
        connection.sendall(payload)


def receive(connection: socket.socket, *, into: memoryview | None = None) -> tuple[dict[str, Any], int]:
    """Read one frame; its payload goes to the front of `into`. Returns the header and the payload's bytes.

    Raises:
        HandoffError: the peer closed the connection, or sent something else than a frame that fits.
    """
    prefix = bytearray(_PREFIX.size)
    _fill(connection, memoryview(prefix))
    magic, header_size, size = _PREFIX.unpack(prefix)
    room = 0 if into is None else into.nbytes
    if magic != _MAGIC or header_size > _MOST_HEADER:
        raise HandoffError("the peer does not speak the handoff protocol")
    if size > room:
        raise HandoffError(f"the peer sent {size} bytes where at most {room} were expected")
    encoded = bytearray(header_size)
    _fill(connection, memoryview(encoded))
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError) as cause:
        raise HandoffError("the peer sent a header that is not JSON") from cause
    if not isinstance(header, dict):
        raise HandoffError("the peer sent a header that is not an object")
    if into is not None and size:
        _fill(connection, into[:size])
    return header, size


def _fill(connection: socket.socket, target: memoryview) -> None:
    done = 0
    while done < target.nbytes:
        count = connection.recv_into(target[done:])
        if count == 0:
            raise HandoffError("the peer closed the connection")
        done += count
