"""`kv_transfer_params`: the object that vLLM's NIXL connector uses, with the same keys and the same meaning."""

from __future__ import annotations

from typing import Any

from conserve_workers.tiny.errors import RequestError
from conserve_workers.tiny.request import RemotePrefill


def describe(
    *, engine_id: str, request_id: str, host: str, port: int, blocks: list[int], tokens: int
) -> dict[str, Any]:
    """What a prefiller answers: where a decoder finds the blocks."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": blocks,
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": host,
        "remote_port": port,
        "remote_num_tokens": tokens,
        "tp_size": 1,
    }


def parse(value: object) -> tuple[bool, RemotePrefill | None]:
    """Read the field of a request: whether to keep the blocks, and where to fetch them.

    Raises:
        RequestError: it is not such an object, or asks for both, or misses a key.
    """
    if value is None:
        return False, None
    if not isinstance(value, dict):
        raise _refused("it must be an object")
    keep, fetch = bool(value.get("do_remote_decode")), bool(value.get("do_remote_prefill"))
    if keep and fetch:
        raise _refused("do_remote_decode and do_remote_prefill exclude each other")
    if not fetch:
        return keep, None

    def text(key: str) -> str:
        found = value.get(key)
        if not isinstance(found, str) or not found:
            raise _refused(f"{key} must be a non-empty string")
        return found

    def number(key: str, most: int) -> int:
        found = value.get(key)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= most:
            raise _refused(f"{key} must be an integer from 1 to {most}")
        return found

    blocks = value.get("remote_block_ids")
    if not isinstance(blocks, list) or not blocks:
        raise _refused("remote_block_ids must be a non-empty list")
    if value.get("tp_size", 1) != 1:
        raise _refused("tp_size must be 1; this engine has no tensor parallelism")
    return False, RemotePrefill(
        engine_id=text("remote_engine_id"),
        request_id=text("remote_request_id"),
        host=text("remote_host"),
        port=number("remote_port", 65_535),
        tokens=number("remote_num_tokens", 1 << 24),
        blocks=len(blocks),
    )


def _refused(reason: str) -> RequestError:
    return RequestError(
        f"kv_transfer_params: {reason}", param="kv_transfer_params", code="invalid_kv_transfer_params"
    )
