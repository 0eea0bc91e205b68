"""Whether something serves at a URL."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from conserve.supervisor.probe import answers
from tests.support.certificates import make_certificate


@pytest.mark.parametrize("status", [204, 404])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_router_is_found_whose_certificate_nobody_here_trusts(
    tmp_path: Path, scheme: str, status: int
) -> None:
    tls = None
    if scheme == "https":
        own = make_certificate(tmp_path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(own.chain, own.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Said\r\nconnection: close\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        assert await answers(f"{scheme}://127.0.0.1:{port}/healthz", timeout_s=10) is (status == 204)
