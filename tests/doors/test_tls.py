"""TLS on both sides of a door: its own certificate for clients, and authorities behind `https://` workers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from conserve import ConfigError
from conserve.proxy.native import NativeServer
from conserve.proxy.server import DoorServer
from conserve.settings import Settings
from conserve_workers.mock import MockWorker
from tests.support.certificates import Certificate, make_certificate
from tests.support.cluster import CHAT, OpenDoor, chat_body
from tests.support.http2 import Http2, request

from .conftest import DOORS, open_native

KINDS = pytest.mark.parametrize("kind", [DoorServer, NativeServer])
BOTH = pytest.mark.parametrize("opened", [pytest.param(DOORS[name], id=name) for name in sorted(DOORS)])


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("other"), name="other")


@contextlib.asynccontextmanager
async def behind_tls(url: str, certificate: Certificate) -> AsyncIterator[str]:
    """The server at `url`, with TLS in front of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    parts = urlsplit(url)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@BOTH
async def test_a_turn_over_tls_is_a_turn(opened: OpenDoor, own: Certificate) -> None:
    worker = MockWorker()
    await worker.start()
    door = await opened({"decoders": [worker.url], "tls_cert": own.chain, "tls_key": own.key})
    try:
        assert door.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(own.chain))
        async with aiohttp.ClientSession() as http, asyncio.timeout(20):
            for stream in (False, True):
                body = chat_body("hi", stream=stream)
                async with http.post(door.url + CHAT, json=body, ssl=trust) as answer:
                    assert answer.status == 200, await answer.text()
                    assert await answer.read()
            large = io.BytesIO(json.dumps(chat_body("x" * 3_000_000)).encode())
            async with http.post(door.url + CHAT, data=large, ssl=trust) as answer:
                assert answer.status in (200, 400), "400: longer than the mock's context"
                assert await answer.json()
            async with http.get(door.url + "/healthz", ssl=trust) as answer:
                assert answer.status == 200
    finally:
        await door.stop()
        await worker.stop()


async def test_http2_is_agreed_on_within_tls(own: Certificate) -> None:
    worker = MockWorker()
    await worker.start()
    door = await open_native({"decoders": [worker.url], "tls_cert": own.chain, "tls_key": own.key})
    try:
        trust = ssl.create_default_context(cafile=str(own.chain))
        trust.set_alpn_protocols(["h2", "http/1.1"])
        async with asyncio.timeout(20):
            parts = urlsplit(door.url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=trust)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            http = Http2(reader, writer)
            await http.start()
            await http.send(request(1, CHAT, json.dumps(chat_body("hi")).encode()))
            is_ok, body = (await http.answers(1))[1]
            assert is_ok
            assert json.loads(body)["choices"]
            writer.close()
    finally:
        await door.stop()
        await worker.stop()


async def test_who_does_not_speak_tls_is_let_go(own: Certificate) -> None:
    door = await open_native(
        {
            "decoders": ["http://127.0.0.1:9"],
            "tls_cert": own.chain,
            "tls_key": own.key,
            "body_timeout_s": 0.2,
        }
    )
    try:
        parts = urlsplit(door.url)
        for said in (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b""):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(said)
            async with asyncio.timeout(10):
                assert b"200" not in await reader.read()
            writer.close()
    finally:
        await door.stop()


@BOTH
async def test_workers_behind_tls_are_served_when_their_authority_is_known(
    opened: OpenDoor, own: Certificate
) -> None:
    worker = MockWorker()
    await worker.start()
    async with behind_tls(worker.url, own) as url, aiohttp.ClientSession() as http, asyncio.timeout(30):
        door = await opened({"decoders": [url], "worker_ca": own.chain})
        try:
            for _ in range(3):
                async with http.post(door.url + CHAT, json=chat_body("hi")) as answer:
                    assert answer.status == 200, await answer.text()
                    assert (await answer.json())["choices"]
        finally:
            await door.stop()
    await worker.stop()


@BOTH
async def test_a_worker_with_a_strangers_certificate_gets_no_request(
    opened: OpenDoor, own: Certificate, other: Certificate
) -> None:
    worker = MockWorker()
    await worker.start()
    async with behind_tls(worker.url, own) as url, aiohttp.ClientSession() as http, asyncio.timeout(30):
        door = await opened({"decoders": [url], "worker_ca": other.chain, "queue_timeout_s": 0.3})
        try:
            async with http.post(door.url + CHAT, json=chat_body("hi")) as answer:
                assert answer.status in (502, 503)
                assert "error" in await answer.json()
            assert not worker.requests
        finally:
            await door.stop()
    await worker.stop()


@KINDS
@pytest.mark.parametrize(
    ("chain", "key", "said"),
    [
        ("own", None, "tls_cert needs tls_key"),
        (None, "own", "tls_key needs tls_cert"),
        ("own", "other", "is not the key of the certificate"),
        ("own", "encrypted", "is encrypted"),
        ("own", "nowhere", "cannot read"),
        ("own", "garbage", "no PEM file"),
    ],
)
def test_files_that_do_not_serve_are_named(
    kind: type[DoorServer | NativeServer],
    chain: str | None,
    key: str | None,
    said: str,
    own: Certificate,
    other: Certificate,
    tmp_path: Path,
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("secret words\n")
    keys = {"own": own.key, "other": other.key, "encrypted": own.encrypted_key, "garbage": garbage}
    files = {
        "tls_cert": None if chain is None else own.chain,
        "tls_key": None if key is None else keys.get(key, tmp_path / "nowhere"),
    }
    settings = Settings(port=0, decoders=["http://d0:1"], **{k: v for k, v in files.items() if v is not None})
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        kind(settings)
    assert "secret words" not in str(raised.value)
    assert "BEGIN" not in str(raised.value)
