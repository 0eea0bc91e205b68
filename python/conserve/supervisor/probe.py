"""Ask a URL whether something serves there. No proxy settings, no redirects: the processes are on this machine."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit


async def answers(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether a GET of `url` is answered with 2xx within `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            return 200 <= await _status(url) < 300
    except (OSError, ValueError, TimeoutError):
        return False


async def _status(url: str) -> int:
    """The status of the answer to a GET; ValueError when what answers is not HTTP."""
    parts = urlsplit(url)
    tls = _any_certificate() if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    try:
        writer.write(
            f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        version, _, rest = (await reader.readline()).partition(b" ")
        if not version.startswith(b"HTTP/"):
            raise ValueError(f"{url} does not speak HTTP")
        return int(rest[:3])
    finally:
        writer.close()


def _any_certificate() -> ssl.SSLContext:
    """Trust whoever answers: a certificate is for the router's clients, and nothing secret is said here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
