"""Drives one `Dispatch`: moves bytes between the client and the workers, as the state machine says.

Promises: the turn is settled whatever happens; a client that leaves takes its upstream request along; what is read from
a worker is written to the client before more is read.
Leaves to others: every decision (`Dispatch`), reading the client's body (`body`), connections (`upstream`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from starlette.types import Receive, Send

from conserve._core import Call, Collect, Finish, Listen, Relay, Reply, Stream, Wait

from .decisions import say
from .errors import Headers, body_of
from .upstream import Failure, kind_of, lower, read_whole, said
from .watchdog import Watchdog

if TYPE_CHECKING:
    import aiohttp

    from conserve._core import Dispatch, Upstream

    from .door import Door

__all__ = ["Drive"]

logger = logging.getLogger(__name__)

_Action: TypeAlias = "Wait | Call | Stream | Listen | Relay | Collect | Reply | Finish"
_Stop: TypeAlias = Literal["gone", "stalled", "shutdown"]
_SHUTDOWN_BODY: Final = body_of("the router is shutting down; try again", code="draining", status=503)


class Drive:
    """One request on its way. Made and run on the event loop, once."""

    __slots__ = (
        "_dispatch",
        "_door",
        "_during",
        "_loop",
        "_receive",
        "_route",
        "_send",
        "_status",
        "_stop",
        "_task",
        "_watchdog",
    )

    def __init__(self, door: Door, dispatch: Dispatch, route: str, receive: Receive, send: Send) -> None:
        self._door = door
        self._dispatch = dispatch
        self._route = route
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._watchdog: Watchdog | None = None
        self._stop: _Stop | None = None
        self._status = 0
        self._during = "start"

    def shut_down(self) -> None:
        """End the request now, with an error for its client."""
        self._interrupt("shutdown")

    async def run(self) -> None:
        """Serve the request to its end."""
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a drive runs in a task")
        self._door.entered(self)
        listener = self._loop.create_task(self._listen())
        try:
            await self._steps()
        except asyncio.CancelledError:
            if self._stop is None or task.uncancel() > 0:
                self._dispatch.client_gone()
                raise
            await self._stopped(self._stop)
        except Exception:
            logger.exception("%s: the door failed while %s", self._route, self._during)
            self._dispatch.client_gone()
            await self._break_off(
                500, body_of("the router failed; see its log", code="internal_error", status=500)
            )
        finally:
            listener.cancel()
            if self._watchdog is not None:
                self._watchdog.close()
            self._door.left(self)
            self._door.metrics.requests[self._route, self._status or 499] += 1

    async def _steps(self) -> None:
        action: _Action | None = self._dispatch.start()
        while action is not None:
            match action:
                case Reply():
                    return await self._reply(action.status, action.headers, action.body)
                case Call():
                    action = await self._call(action.upstream)
                case Stream():
                    action = await self._stream(action.upstream)
                case Wait():
                    self._during = "waiting"
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(action.timeout_s):
                            await self._dispatch.wait(self._loop)
                    action = self._dispatch.admitted()
                case Finish():
                    return await self._finish(action.data)
                case _:
                    raise RuntimeError(f"an action out of place: {action!r}")
        return None

    async def _call(self, upstream: Upstream) -> _Action:
        """One exchange whose answer is held whole."""
        self._during = upstream.phase
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(upstream.first_byte_timeout_s):
                response = await self._door.upstreams.post(upstream)
                body = await read_whole(response, self._door.settings.max_answer_bytes)
        except Exception as error:  # noqa: BLE001 - `_failure` raises again what is no failure of a worker
            return self._dispatch.failed(self._failure(error, upstream))
        finally:
            _let_go(response)
        return self._dispatch.answered(response.status, lower(response.raw_headers), body)

    async def _stream(self, upstream: Upstream) -> _Action | None:
        """One exchange whose answer is passed on as it comes; None once the client has all of it."""
        self._during = upstream.phase
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(upstream.first_byte_timeout_s):
                response = await self._door.upstreams.post(upstream)
            headers = lower(response.raw_headers)
            action = self._dispatch.head(response.status, headers)
            heard = 0
            while isinstance(action, Listen):
                kind: Failure = "idle_timeout" if heard else "first_byte_timeout"
                limit_s = upstream.idle_timeout_s if heard else upstream.first_byte_timeout_s
                try:
                    async with asyncio.timeout(limit_s):
                        piece = await response.content.readany()
                except TimeoutError:
                    self._note(kind, upstream, None)
                    return self._dispatch.failed(kind)
                heard += len(piece)
                self._door.metrics.relayed_bytes += len(piece)
                action = self._dispatch.heard(piece)
            match action:
                case Relay():
                    return await self._relay(upstream, response, action)
                case Collect():
                    async with asyncio.timeout(upstream.first_byte_timeout_s):
                        body = await read_whole(response, action.limit)
                    return self._dispatch.answered(response.status, headers, body)
                case _:
                    return action
        except Exception as error:  # noqa: BLE001 - `_failure` raises again what is no failure of a worker
            return self._dispatch.failed(self._failure(error, upstream))
        finally:
            _let_go(response)

    async def _relay(
        self, upstream: Upstream, response: aiohttp.ClientResponse, relay: Relay
    ) -> _Action | None:
        """Pass the stream on. Only the worker's failures end up in `failed`."""
        send, dispatch, content = self._send, self._dispatch, response.content
        watchdog = self._watchdog = Watchdog(self._loop, self._interrupt_for_time)
        stall_s = self._door.settings.client_stall_timeout_s
        say(self._route, relay.status, relay.headers, None, dispatch.reason)
        await self._head(relay.status, relay.headers)
        limit_s = upstream.idle_timeout_s if relay.first else upstream.first_byte_timeout_s
        kind: Failure = "idle_timeout" if relay.first else "first_byte_timeout"
        relayed = 0
        try:
            if relay.first:
                watchdog.expect("client", stall_s)
                await send({"type": "http.response.body", "body": relay.first, "more_body": True})
            while True:
                watchdog.expect("worker", limit_s)
                try:
                    piece = await content.readany()
                except asyncio.CancelledError:
                    if watchdog.fired != "worker" or self._stop is not None or self._task is None:
                        raise
                    self._task.uncancel()
                    self._note(kind, upstream, None)
                    return dispatch.failed(kind)
                if not piece:
                    break
                limit_s, kind = upstream.idle_timeout_s, "idle_timeout"
                relayed += len(piece)
                out = dispatch.chunk(piece)
                if out:
                    watchdog.expect("client", stall_s)
                    await send({"type": "http.response.body", "body": out, "more_body": True})
        finally:
            watchdog.rest()
            self._door.metrics.relayed_bytes += relayed
        await self._finish(dispatch.end())
        return None

    async def _listen(self) -> None:
        """Wait for the client to leave."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._interrupt("gone")

    def _interrupt_for_time(self) -> None:
        watchdog, task = self._watchdog, self._task
        if watchdog is not None and watchdog.fired == "client":
            self._interrupt("stalled")
        elif task is not None:
            task.cancel()

    def _interrupt(self, why: _Stop) -> None:
        if self._stop is None and self._task is not None:
            self._stop = why
            self._task.cancel()

    async def _stopped(self, why: _Stop) -> None:
        self._dispatch.client_gone()
        if why == "shutdown":
            await self._break_off(503, _SHUTDOWN_BODY)
            return
        self._status = 499
        self._door.metrics.client_gone[self._during] += 1
        if why == "stalled":
            logger.warning(
                "%s: the client took nothing for too long while %s; let go", self._route, self._during
            )
        else:
            logger.info("%s: the client left while %s", self._route, self._during)

    async def _break_off(self, status: int, content: bytes) -> None:
        """Answer with an error: as a response, or as an event where a stream has begun."""
        if self._status:
            await self._finish(b"\n\ndata: " + content + b"\n\n")
        else:
            await self._reply(
                status, [(b"content-type", b"application/json"), (b"retry-after", b"1")], content
            )

    async def _head(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self._status = status

    async def _reply(self, status: int, headers: Headers, body: bytes) -> None:
        if not any(name == b"content-length" for name, _ in headers):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        say(self._route, status, headers, body, self._dispatch.reason)
        await self._head(status, headers)
        await self._finish(body)

    async def _finish(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def _failure(self, error: Exception, upstream: Upstream) -> Failure:
        kind = kind_of(error)
        if kind is None:
            raise error
        self._note(kind, upstream, error)
        return kind

    def _note(self, kind: Failure, upstream: Upstream, error: Exception | None) -> None:
        self._door.metrics.upstream_failures[kind] += 1
        words = kind if error is None else f"{kind}, {said(error)}"
        logger.warning("%s: %s failed at %s: %s", self._route, upstream.phase, upstream.worker_name, words)


def _let_go(response: aiohttp.ClientResponse | None) -> None:
    """Keep the connection if the answer was read to its end, else abort it."""
    if response is None:
        return
    if response.content.at_eof():
        response.release()
    else:
        response.close()
