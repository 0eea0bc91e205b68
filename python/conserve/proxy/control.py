"""The routes beside the turns: models, health, metrics, conversations, the fleet."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from conserve.errors import ConserveError

from . import errors, roles

if TYPE_CHECKING:
    from conserve._core import ConversationView

    from .door import Door

__all__ = ["control_routes"]

_Json: TypeAlias = dict[str, Any]

# What the fleet tells of each worker, as the router's snapshot names it.
_COLUMNS: Final = (
    "id",
    "name",
    "url",
    "role",
    "helps",
    "tier",
    "health",
    "draining",
    "kv_blocks",
    "block_size",
    "max_model_len",
    "booked_blocks",
    "reserved_blocks",
    "retained_blocks",
    "conversations",
    "running",
    "queued_tokens",
    "tokens_per_s",
    "kv_usage",
    "reported_running",
    "reported_waiting",
    "report_age_s",
    "prefilling",
    "decoding",
    "prefill_s",
    "decode_s",
    "prompt_tokens",
    "output_tokens",
    "report_stale",
    "resident_blocks",
    "resident_idle_blocks",
    "idle_evicted_blocks",
)
# Where nobody counts: the library, or a program of its own around the routes.
_NO_ENERGY: Final[_Json] = {
    "zones": {},
    "no_counter": {"all": "energy is counted by conserve serve"},
    "workers": {},
    "tiers": {},
    "fleet": {},
}


def control_routes(routes: APIRouter, door: Door) -> None:
    """Add them to `routes`."""

    @routes.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": door.watch.models()})

    @routes.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @routes.get("/readyz")
    async def readyz() -> Response:
        why_not = door.ready()
        if why_not is None:
            return JSONResponse({"status": "ready"})
        return errors.refusal(
            why_not, code="draining" if door.draining else "no_workers", status=503, retry_after_s=1
        )

    @routes.get("/metrics")
    async def metrics(request: Request) -> Response:
        if (refusal := _locked(door, request)) is not None:
            return refusal
        own = door.counted().exposition(
            in_flight=door.in_flight, draining=door.draining, dispatched=door.dispatcher.counters
        )
        energy = "" if door.energy is None else door.energy.exposition()
        return PlainTextResponse(
            door.router.metrics() + own + energy, media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @routes.get("/v1/fleet")
    async def fleet(request: Request, check: Annotated[bool, Query()] = False) -> Response:
        """The workers and the line; with `check`, whether the books balance (asked when no turn is under way)."""
        if (refusal := _locked(door, request)) is not None:
            return refusal
        told = _fleet(door)
        if check:
            told["check"] = _check(door)
        return JSONResponse(told)

    @routes.get("/v1/energy")
    async def energy(request: Request) -> Response:
        if (refusal := _locked(door, request)) is not None:
            return refusal
        return JSONResponse(_NO_ENERGY if door.energy is None else door.energy.told())

    @routes.get("/v1/conversations/{conversation:path}")
    async def conversation_of(request: Request, conversation: str) -> Response:
        headers = request.scope["headers"]
        try:
            view = door.dispatcher.conversation(conversation, headers)
        except ConserveError as error:
            return errors.of(error)
        if view is not None:
            return JSONResponse(_conversation(conversation, view, door.router.now_s))
        # The log may have lines of it all the same.
        return _unknown(
            conversation, {"x-conserve-conversation": door.dispatcher.key_of(conversation, headers)}
        )

    @routes.delete("/v1/conversations/{conversation:path}")
    async def close_conversation(request: Request, conversation: str) -> Response:
        try:
            closed = door.dispatcher.close_conversation(conversation, request.scope["headers"])
        except ConserveError as error:
            return errors.of(error)
        if not closed:
            return _unknown(conversation)
        return JSONResponse({"id": conversation, "object": "conversation.deleted", "deleted": True})


def _locked(door: Door, request: Request) -> Response | None:
    """None for a caller that may see the fleet; else what to answer."""
    key = door.settings.control_key
    if key is None:
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode(), key.get_secret_value().encode()
    ):
        return None
    text = "this route asks for the router's control key; send it as Authorization: Bearer"
    return errors.refusal(text, code="invalid_api_key", status=401, headers={"www-authenticate": "Bearer"})


def _fleet(door: Door) -> _Json:
    snapshot = door.router.snapshot()
    watched = {each.id: each for each in door.watch.workers if each.id is not None}
    live = [row for row in snapshot.workers if row.health != "lost"]
    workers = []
    for row in live:
        each = watched.get(row.id)
        told = {key: getattr(row, key) for key in _COLUMNS}
        workers.append(told | {"models": [] if each is None else [card["id"] for card in each.models]})
    away = [
        {"name": each.name, "url": each.at.url, "role": each.role, "error": each.last_error}
        for each in door.watch.workers
        if each.id is None
    ]
    return {
        "workers": workers,
        "away": away,
        "booked_blocks": sum(row.booked_blocks for row in live),
        "conversations": snapshot.conversations,
        "waiting": snapshot.waiting,
        "waiting_tail": snapshot.waiting_tail,
        "in_flight": door.in_flight,
        "draining": door.draining,
        "recomputed_share": snapshot.recomputed_share,
        "roles": roles.told(snapshot),
        "counters": snapshot.counters,
        "dispatch": door.dispatcher.counters,
    }


def _check(door: Door) -> str:
    try:
        door.router.check()
    except AssertionError as error:
        return str(error)
    return "ok"


def _conversation(name: str, view: ConversationView, now_s: float) -> _Json:
    return {
        "id": name,
        "object": "conversation",
        "key": view.key,
        "phase": view.phase,
        "decoder": view.decoder_name,
        "decoder_url": view.decoder,
        "turn": view.turn,
        "in_flight": view.in_flight,
        "blocks": view.blocks,
        "idle_s": max(0.0, now_s - view.last_used_s),
        "ttfet_s": view.ttfet_s,
        "tokens": view.tokens,
        "energy_j": view.energy_j or None,
        "j_per_token": view.energy_j / view.tokens if view.energy_j and view.tokens else None,
        "tokens_per_j": view.tokens / view.energy_j if view.energy_j else None,
    }


def _unknown(conversation: str, headers: dict[str, str] | None = None) -> Response:
    shown = conversation if len(conversation) <= 64 else f"{conversation[:64]}..."
    text = (
        f"no conversation {shown!r} under this credential: it never was, was closed, or was idle for too long"
    )
    return errors.refusal(text, code="conversation_not_found", status=404, param="id", headers=headers)
