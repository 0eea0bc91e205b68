"""`create_app`: the door as an app of its own."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from conserve._meant import meant
from conserve.settings import Settings

from . import errors
from .door import Door
from .routes import ShortWay, routes_of

__all__ = ["app_of", "create_app"]

logger = logging.getLogger(__name__)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The whole door, as an ASGI app; `settings` default to the environment's. Raises ConfigError.

    `app.state.door` is the door, for whoever runs the app.
    """
    chosen = Settings() if settings is None else settings
    return app_of(Door(chosen.router(empty=True), chosen))


def app_of(door: Door) -> FastAPI:
    """The app that serves `door`."""
    app = FastAPI(title="ConServe", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.door = door
    routes = routes_of(door)
    app.include_router(routes)
    app.state.paths = [route.path for route in routes.routes if isinstance(route, Route)]
    app.add_middleware(ShortWay, door=door)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(Exception, _failed)
    return app


async def _no_such_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    where = f"{request.method} {request.url.path[:200]}"
    headers = dict(error.headers or {})
    if error.status_code == 404:
        # A base URL without /v1, most likely.
        near = meant(request.url.path[:200], request.app.state.paths, least=0.8)
        return errors.refusal(f"there is no route {where}{near}", code="not_found", status=404)
    if error.status_code == 405:
        allowed = headers.get("Allow", headers.get("allow", ""))
        text = f"{where}: the method is not allowed here; allowed: {allowed}"
        return errors.refusal(text, code="method_not_allowed", status=405, headers=headers)
    return errors.refusal(str(error.detail), code="http_error", status=error.status_code, headers=headers)


async def _bad_query(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    text = f"{request.method} {request.url.path[:200]}: {first['loc'][-1]}: {first['msg']}"
    return errors.refusal(text, code="invalid_value", status=400, param=str(first["loc"][-1]))


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return errors.refusal("the router failed; see its log", code="internal_error", status=500)
