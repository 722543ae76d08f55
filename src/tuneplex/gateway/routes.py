"""Which page or API route a path means."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import unquote

import msgspec

from tuneplex.errors import MethodNotAllowed, NotFound
from tuneplex.identity import Scope
from tuneplex.types import Route

__all__ = ["Page", "Target", "find_target", "methods", "paths"]


class Page(StrEnum):
    """What no engine is asked for."""

    MODELS = "models"
    MODEL = "model"
    HEALTH = "health"
    READY = "ready"
    METRICS = "metrics"
    OPENAPI = "openapi"
    ADMIN = "admin"


class Target(msgspec.Struct, frozen=True):
    """What a request is for.

    Attributes:
        route: Of the API, to be sent on to an engine; None for a page.
        page: Answered without an engine; None for a route.
        deployment: NAME of `/d/NAME/v1/…`, which says the model.
        model: ID of `/v1/models/ID`.
        label: Its name in metrics.
        scopes: What the key must be for, one of them; empty means that no key is needed.
    """

    label: str
    route: Route | None = None
    page: Page | None = None
    deployment: str | None = None
    model: str = ""
    scopes: tuple[Scope, ...] = (Scope.USE,)


_ROUTES = {f"/v1/{route.value}": Target(route.value, route) for route in Route}
_PAGES = {
    "/v1/models": Target(Page.MODELS.value, page=Page.MODELS),
    "/health": Target(Page.HEALTH.value, page=Page.HEALTH, scopes=()),
    "/ready": Target(Page.READY.value, page=Page.READY, scopes=()),
    "/metrics": Target(Page.METRICS.value, page=Page.METRICS, scopes=(Scope.USAGE, Scope.ADMIN)),
    "/openapi.json": Target(Page.OPENAPI.value, page=Page.OPENAPI, scopes=()),
}
_MODEL = "/v1/models/"
_ADMIN = "/admin/"
_ADMIN_TARGET = Target(Page.ADMIN.value, page=Page.ADMIN, scopes=(Scope.ADMIN,))
_DEPLOYMENT = "/d/"


def find_target(method: str, path: str) -> Target:
    """What a request is for.

    Raises:
        NotFound: There is no such path.
        MethodNotAllowed: There is, for another method.
    """
    target = _ROUTES.get(path)
    if target is not None and method == "POST":  # the usual case first
        return target
    target = target or _find(path)
    if target is None:
        raise NotFound("There is no such path.", code="unknown_path")
    allowed = methods(target)
    if method not in allowed:
        words = f"This path takes {' and '.join(allowed)}, not {method}."
        raise MethodNotAllowed(words, code="method_not_allowed", allowed=allowed)
    return target


def paths() -> Mapping[str, Target]:
    """All paths, with their variable parts in braces, but those below `/admin`, which are control's."""
    every = {**_ROUTES, **_PAGES, _MODEL + "{model}": Target(Page.MODEL.value, page=Page.MODEL, model="{model}")}
    below = {
        f"{_DEPLOYMENT}{{deployment}}{path}": msgspec.structs.replace(target, deployment="{deployment}")
        for path, target in every.items()
        if path.startswith("/v1/")
    }
    return {**every, **below}


def methods(target: Target) -> tuple[str, ...]:
    """What it takes."""
    if target.route is not None:
        return ("POST",)
    return ("GET", "HEAD", "POST", "PATCH", "DELETE") if target.page is Page.ADMIN else ("GET", "HEAD")


def _find(path: str) -> Target | None:
    if path in _PAGES:
        return _PAGES[path]
    if path.startswith(_MODEL):
        return Target(Page.MODEL.value, page=Page.MODEL, model=unquote(path.removeprefix(_MODEL)))
    if path.startswith(_DEPLOYMENT):
        return _below(path)
    return _ADMIN_TARGET if path.startswith(_ADMIN) else None


def _below(path: str) -> Target | None:
    """A path of a deployment's own base URL: everything under `/v1`, with the model said."""
    name, slash, rest = path.removeprefix(_DEPLOYMENT).partition("/v1/")
    inner = f"/v1/{rest}"
    target = _ROUTES.get(inner) or (_find(inner) if slash and name else None)
    if target is None or not name or target.deployment is not None:
        return None
    return msgspec.structs.replace(target, deployment=unquote(name))
