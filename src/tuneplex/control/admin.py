"""The admin API, on a Unix socket that only this user can open."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tuneplex.control.controller import Controller
from tuneplex.engines.driver import KINDS
from tuneplex.errors import ApiError, BadRequest, MethodNotAllowed, NotFound, TuneplexError
from tuneplex.metrics import CONTENT_TYPE
from tuneplex.policy.changes import changes
from tuneplex.types import Change, FleetSpec

__all__ = ["Conflict", "admin_app"]

_METHOD_NOT_ALLOWED = 405


class Conflict(ApiError):
    """The fleet cannot come to this while it runs."""

    status = 409
    kind = "invalid_request_error"


def admin_app(controller: Controller, save: Callable[[FleetSpec], None]) -> Starlette:
    """The routes of the admin API.

    ====================  =====================================================================================
    `GET /status`         `types.Status`
    `POST /apply`         a `FleetSpec` comes live; answers the list of `types.Change`. With `?dry_run=1` it only
                          tells. If one change needs a restart of the fleet, nothing is changed at all (409).
    `GET /metrics`        the gateways' numbers added up, and the engines' figures
    ====================  =====================================================================================

    Args:
        controller: What the routes are about.
        save: Keeps an applied spec for the next start.
    """

    async def status(_request: Request) -> Response:
        return _json(controller.status())

    async def metrics(_request: Request) -> Response:
        return Response(controller.metrics(), media_type=CONTENT_TYPE)

    async def apply(request: Request) -> Response:
        spec = _spec(await request.body(), controller.launcher_names)
        found = changes(controller.spec, spec)
        if not request.query_params.get("dry_run"):
            _refuse_restarts(found)
            save(spec)
            controller.apply(spec)
        return _json(found)

    routes = [
        Route("/status", status),
        Route("/metrics", metrics),
        Route("/apply", apply, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={ApiError: _api_error, HTTPException: _http_error})


def _spec(body: bytes, launchers: Collection[str]) -> FleetSpec:
    try:
        spec = msgspec.json.decode(body, type=FleetSpec)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"this is not a fleet: {error}") from error
    for pool in spec.pools:
        if pool.engine not in KINDS or pool.launcher not in launchers:
            raise BadRequest(f"pool {pool.name}: no engine {pool.engine} by the launcher {pool.launcher} here")
    return spec


def _refuse_restarts(found: tuple[Change, ...]) -> None:
    stuck = [f"{change.what} ({change.detail})" for change in found if change.how == "restart"]
    if stuck:
        raise Conflict(f"needs tuneplex down and tuneplex up: {', '.join(stuck)}; nothing was changed")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _api_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise TuneplexError("only errors of the API come here") from error
    return Response(error.body(), status_code=error.status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.url.path}"
    shown = MethodNotAllowed(f"not {what}") if status == _METHOD_NOT_ALLOWED else NotFound(f"there is no {what}")
    return await _api_error(request, shown)
