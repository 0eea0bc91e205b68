"""KV events over real sockets: a publisher in the test plays vLLM's, with its replay."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import zmq
import zmq.asyncio

from conserve import Decoder, Router
from conserve.errors import ConfigError
from conserve.proxy.events import Ears
from conserve.settings import Settings, WorkerAt

WAIT_S = 20.0
END = (-1).to_bytes(8, "big", signed=True)


def stored(*blocks: int) -> bytes:
    """One batch as vLLM packs it: `[time, [{type, block_hashes}], rank]`."""
    hashes = b"".join(b"\xcf" + struct.pack(">Q", block) for block in blocks)
    event = b"\x82\xa4type\xabBlockStored\xacblock_hashes\xdc" + struct.pack(">H", len(blocks)) + hashes
    return b"\x93\xcb" + struct.pack(">d", 1.0) + b"\x91" + event + b"\x00"


class Publisher:
    """Publishes batches, keeps the last `kept` and repeats them when asked. `topic` as vLLM 0.32 does."""

    def __init__(self, *, kept: int = 1000, topic: bool = True, answers: bool = True) -> None:
        self.context = zmq.asyncio.Context()
        self.kept = kept
        self.topic = topic
        self.answers = answers
        self.asked: list[int] = []
        self.heard = asyncio.Event()
        self.events = self.replay = ""
        self._task: asyncio.Task[None] | None = None

    def start(self, events: str = "tcp://127.0.0.1:*", replay: str = "tcp://127.0.0.1:*") -> None:
        self.batches: dict[int, bytes] = {}
        self.pub = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        for socket, where in ((self.pub, events), (self.router, replay)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(where)
        self.events = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self.pub.close()
            self.router.close()

    async def restart(self) -> None:
        events, replay = self.events, self.replay
        await self.stop()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    self.start(events, replay)
                    break
                except zmq.ZMQError:  # ZeroMQ closes sockets in a thread of its own
                    self.pub.close()
                    self.router.close()
                    await asyncio.sleep(0.01)
        await self.subscribed()

    async def subscribed(self) -> None:
        async with asyncio.timeout(WAIT_S):
            assert await self.pub.recv() == b"\x01"

    async def publish(self, number: int, batch: bytes, *, dropped: bool = False) -> None:
        self.batches[number] = batch
        for old in [each for each in self.batches if each <= number - self.kept]:
            del self.batches[old]
        if not dropped:
            await self.pub.send_multipart([b"kv@d0", number.to_bytes(8, "big"), batch])

    async def _serve(self) -> None:
        while True:
            who, empty, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            self.heard.set()
            if not self.answers:
                continue
            head = [who, empty, b"kv@d0"] if self.topic else [who, empty]
            for number, batch in list(self.batches.items()):
                if number >= self.asked[-1]:
                    await self.router.send_multipart([*head, number.to_bytes(8, "big"), batch])
            await self.router.send_multipart([*head, END, b""])


class Followed:
    """A router that hears one publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.router = Router(decoders=[Decoder("http://d0:8000", kv_blocks=10_000)])

    @property
    def resident(self) -> int | None:
        return self.router.snapshot().workers[0].resident_blocks

    @property
    def missed(self) -> str:
        name = "conserve_worker_kv_event_batches_missed_total{"
        (line,) = [line for line in self.router.metrics().splitlines() if line.startswith(name)]
        return line.rpartition(" ")[2]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():  # noqa: ASYNC110 - a socket at work tells nobody here
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def following(publisher: Publisher, *, replay: bool = True) -> AsyncIterator[Followed]:
    if not publisher.events:
        publisher.start()
    heard = Followed(publisher)
    ears = Ears(heard.router)
    worker = heard.router.snapshot().workers[0].id
    following = ears.follow(
        worker, label="d0", events=publisher.events, replay=publisher.replay if replay else None
    )
    task = asyncio.create_task(following)
    try:
        await publisher.subscribed()
        yield heard
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ears.close()
        await publisher.stop()
        publisher.context.destroy(linger=0)


async def test_batches_are_counted_as_they_come() -> None:
    publisher = Publisher()
    async with following(publisher) as heard:
        await publisher.publish(0, stored(1, 2, 3))
        await publisher.publish(1, stored(3, 4))
        await heard.until(lambda: heard.resident == 4)


@pytest.mark.parametrize("topic", [True, False])
async def test_what_was_before_us_and_what_got_lost_is_asked_for(topic: bool) -> None:
    publisher = Publisher(topic=topic)
    publisher.start()
    for number in range(100):
        await publisher.publish(number, stored(number), dropped=True)
    async with following(publisher) as heard:
        await heard.until(lambda: heard.resident == 100)
        for number in range(100, 150):
            await publisher.publish(number, stored(number), dropped=True)
        await publisher.publish(150, stored(150))
        await heard.until(lambda: heard.resident == 151)
        assert publisher.asked == [0, 100]
        assert heard.missed == "0"


async def test_what_cannot_be_had_again_makes_the_total_unknown() -> None:
    publisher = Publisher(kept=2)
    async with following(publisher) as heard:
        await publisher.publish(0, stored(1))
        await heard.until(lambda: heard.resident == 1)
        for number in range(1, 9):
            await publisher.publish(number, stored(number), dropped=True)
        await publisher.publish(9, stored(9))
        await heard.until(lambda: heard.missed == "7")
        assert heard.resident is None


async def test_a_gap_without_replay_is_given_up() -> None:
    publisher = Publisher()
    async with following(publisher, replay=False) as heard:
        await publisher.publish(5, stored(1))
        await heard.until(lambda: heard.missed == "5")
        assert publisher.asked == []


@pytest.mark.parametrize("missing_first", [0, 3])
async def test_a_publisher_that_starts_again_has_nothing_cached(missing_first: int) -> None:
    publisher = Publisher()
    async with following(publisher) as heard:
        for number in range(6):
            await publisher.publish(number, stored(number))
        await heard.until(lambda: heard.resident == 6)
        await publisher.restart()
        for number in range(missing_first):
            await publisher.publish(number, stored(100 + number), dropped=True)
        await publisher.publish(missing_first, stored(200, 201))
        await heard.until(lambda: heard.resident == missing_first + 2)
        assert heard.missed == "0"


async def test_a_restart_whose_beginning_nobody_has_is_not_taken_for_known() -> None:
    publisher = Publisher()
    async with following(publisher, replay=False) as heard:
        for number in range(6):
            await publisher.publish(number, stored(number))
        await heard.until(lambda: heard.resident == 6)
        await publisher.restart()
        await publisher.publish(4, stored(1))
        await heard.until(lambda: heard.missed == "3")
        assert heard.resident is None


async def test_nonsense_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher()
    async with following(publisher) as heard:
        await publisher.publish(0, stored(1))
        await publisher.pub.send_multipart([b"one frame"])
        await publisher.pub.send_multipart([b"kv", b"short", stored(7)])
        await publisher.pub.send_multipart([b"kv", b"\xff" * 8, stored(7)])
        await publisher.publish(1, b"\xc1 no batch")
        await publisher.publish(2, stored(2))
        await heard.until(lambda: heard.missed == "1")
        said = [record for record in caplog.records if "not all usable" in record.getMessage()]
        assert len(said) == 1, "said once, however much comes"


async def test_a_replay_that_never_comes_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conserve.proxy.events._SILENCE_S", 0.2)
    publisher = Publisher(answers=False)
    async with following(publisher) as heard:
        await publisher.publish(3, stored(3))
        await publisher.publish(4, stored(4))
        await heard.until(lambda: heard.missed == "3")
        assert publisher.asked[0] == 0


def test_endpoints_are_read_and_checked() -> None:
    at = WorkerAt.parse("http://d0:1,kv_events=tcp://d0:5557,kv_replay=ipc:///run/replay")
    assert (at.kv_events, at.kv_replay) == ("tcp://d0:5557", "ipc:///run/replay")
    for wrong in ("kv_events=tcp://*:5557", "kv_events=d0:5557", "kv_replay=", "kv_events=tcp://d0"):
        with pytest.raises(ConfigError, match="takes tcp://host:port"):
            Settings(decoders=f"http://d0:1,{wrong}")
    with pytest.raises(ConfigError, match="without kv_events"):
        Settings(decoders="http://d0:1,kv_replay=tcp://d0:1").router()
