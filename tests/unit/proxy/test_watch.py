from __future__ import annotations

import errno

import aiohttp
import pytest

from conserve import Decoder, Router
from conserve.proxy.watch import Watch, _cards, _UnhealthyError
from conserve.settings import Settings


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"data":' * 100_000,
        b'{"data":7}',
        b'{"data":[7]}',
        b'{"data":[{"id":"\\ud800"}]}',
        b'{"data":[{"id":"m","created":NaN}]}',
        b'{"data":[{"id":"m","created":' + b"9" * 5000 + b"}]}",
    ],
)
def test_what_is_no_list_of_models_is_unhealthy(garbage: bytes) -> None:
    with pytest.raises(_UnhealthyError):
        _cards(garbage)


@pytest.mark.parametrize("length", ["0", "-5", "true", '"x"', "1e3", "null", "1" + "0" * 30])
def test_a_length_that_is_none_is_left_out(length: str) -> None:
    assert _cards(b'{"data":[{"id":"m","max_model_len":%b}]}' % length.encode()) == [{"id": "m"}]


def test_a_door_without_file_descriptors_does_not_lose_its_workers() -> None:
    settings = Settings()
    router = Router(decoders=[Decoder("http://d0:8000", kv_blocks=10)])
    watch = Watch(router, settings.dispatcher(router), settings)
    (watched,) = watch.workers
    for number in (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL):
        for _ in range(settings.probe_failures + 1):
            watch._failed(watched, _connector_error(number))
    assert router.snapshot().workers[0].health == "ready", "that was our own fault"
    watch._failed(watched, _connector_error(errno.ECONNREFUSED))
    assert router.snapshot().workers[0].health == "lost"


def _connector_error(number: int) -> aiohttp.ClientConnectorError:
    key = aiohttp.client_reqrep.ConnectionKey("d0", 8000, False, True, None, None, None)
    return aiohttp.ClientConnectorError(key, OSError(number, "a test"))
