"""The gateway's API as an OpenAPI 3.1 document, from the table that its routes are found in: pure functions.

It says nothing about a fleet, only about this version of the gateway, so it needs no key: whoever makes a client or
checks a proxy's rules has it before they have one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from tuneplex import __version__
from tuneplex.gateway.forms import (
    REPLIES,
    REPLY_HEADERS,
    REQUEST_HEADERS,
    Health,
    ModelCard,
    ModelList,
    Readiness,
    request,
)
from tuneplex.gateway.routes import Page, Target, methods, paths
from tuneplex.openapi import JSON, Failure, bearer, path_parameter, phrase, response, schemas, variables
from tuneplex.types import Route

__all__ = ["document", "page"]

_EVENTS = "text/event-stream"
_PLAIN = "text/plain"
_KEYED = (401, 403)
_ANYWHERE = (405, 408, 413, 431)
_API_ERRORS = (400, 404, 409, 422, 429, 500, 502, 503, 504)
_RETRIED = frozenset({429, 503, 504})
_LATE = frozenset({500, 502, 503, 504})  # what a request can become after it has waited
_REFUSED = frozenset({401, 403, 405, 408, 409, 413, 422, 431})  # before anybody asks for an earlier reply
_WAITED = "x-tuneplex-waited"
_WHY = "x-tuneplex-why"
_REPLAYED = ("idempotent-replayed", "x-tuneplex-original-request-id")
_ALSO = {
    401: ("www-authenticate",),
    405: ("allow",),
    409: ("x-should-retry",),
    429: ("x-should-retry",),
    502: ("x-should-retry",),
    504: ("x-should-retry",),
}
# By `Target.label`, which is the route's or the page's own value.
_NAMES: dict[str, str] = {
    Route.CHAT: "createChatCompletion",
    Route.COMPLETIONS: "createCompletion",
    Route.RESPONSES: "createResponse",
    Route.EMBEDDINGS: "createEmbedding",
    Page.MODELS: "listModels",
    Page.MODEL: "retrieveModel",
    Page.HEALTH: "health",
    Page.READY: "ready",
    Page.METRICS: "metrics",
    Page.OPENAPI: "describe",
}
_SUMMARIES: dict[str, str] = {
    Route.CHAT: "A chat completion, streaming or not.",
    Route.COMPLETIONS: "A completion, streaming or not.",
    Route.RESPONSES: "A response, streaming or not; nothing is stored.",
    Route.EMBEDDINGS: "Embeddings, where the engine's model offers them.",
    Page.MODELS: "What the key may call.",
    Page.MODEL: "One model that the key may call.",
    Page.HEALTH: "Whether the gateway process answers.",
    Page.READY: "Whether at least one engine is ready.",
    Page.METRICS: "The fleet's Prometheus page; on this machine without a key.",
    Page.OPENAPI: "This document.",
}
_PAGES: dict[str, tuple[Any, tuple[int, ...]]] = {
    Page.MODELS: (ModelList, (503,)),
    Page.MODEL: (ModelCard, (404, 503)),
    Page.HEALTH: (Health, ()),
    Page.READY: (Readiness, (503,)),
    Page.METRICS: (None, (503,)),
    Page.OPENAPI: (dict[str, Any], ()),
}
_DESCRIPTION = (
    "OpenAI's API over every model of the fleet; `/d/{deployment}/v1` is a base URL for one. A stream is complete when "
    "it ends with `data: [DONE]`, or a response's with its own last event; one that ends with an event with an "
    "`error` has failed, and any other end is a break. A fleet without keys asks for none."
)


@cache
def page() -> bytes:
    """The document as the gateway answers it."""
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The document."""
    kinds = [Failure, *(kind for kind, _ in _PAGES.values() if kind is not None)]
    shape_of, components = schemas(kinds)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tuneplex", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": {
            path: {method.lower(): _operation(path, method, target, shape_of) for method in methods(target)}
            for path, target in paths().items()
        },
        "components": {
            "schemas": components,
            "headers": {
                name: {"description": words, "schema": schema, "required": name == "x-request-id"}
                for name, (schema, words) in REPLY_HEADERS.items()
            },
            "securitySchemes": bearer(),
        },
    }


def _operation(path: str, method: str, target: Target, shape_of: dict[Any, Any]) -> dict[str, Any]:
    name = _NAMES[target.label] + ("Of" if target.deployment else "")
    operation: dict[str, Any] = {
        "operationId": f"{name}Head" if method == "HEAD" else name,
        "summary": _SUMMARIES[target.label],
        "parameters": [*map(path_parameter, variables(path)), *map(_header, _taken(target))],
        **_security(target),
    }
    if target.route is not None:
        schema = request(target.route, deployed=target.deployment is not None)
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    operation["responses"] = _responses(method, target, shape_of)
    return operation


def _security(target: Target) -> dict[str, Any]:
    if target.page is Page.METRICS:
        return {"security": [{"key": []}, {}]}
    return {} if target.scopes else {"security": []}


def _taken(target: Target) -> tuple[str, ...]:
    """The request headers that mean something here."""
    return tuple(REQUEST_HEADERS) if target.route is not None else ("x-request-id",)


def _header(name: str) -> dict[str, Any]:
    schema, words = REQUEST_HEADERS[name]
    return {"name": name, "in": "header", "description": words, "schema": schema}


def _responses(method: str, target: Target, shape_of: dict[Any, Any]) -> dict[str, Any]:
    failures = sorted({*_failures(target), *_ANYWHERE, *(_KEYED if target.scopes else ())})
    found = {"200": _success(method, target, shape_of)}
    found |= {str(status): _failure(status, method, target, shape_of) for status in failures}
    if target.route is not None:
        found["4XX"] = _sent(
            "The engine's own refusal", method, shape_of[Failure], ("x-request-id", _WAITED, _WHY, *_REPLAYED)
        )
    return found


def _failures(target: Target) -> tuple[int, ...]:
    if target.page is None:
        return _API_ERRORS
    return (*_PAGES[target.label][1], *((404,) if target.deployment else ()))


def _success(method: str, target: Target, shape_of: dict[Any, Any]) -> dict[str, Any]:
    if target.route is None:
        kind = _PAGES[target.label][0]
        if kind is None:
            return _sent("OK", method, {"type": "string"}, ("x-request-id",), _PLAIN)
        return _sent("OK", method, shape_of[kind], ("x-request-id",))
    others = ("retry-after", "x-should-retry", "allow", "www-authenticate")
    sent = _sent("OK", method, REPLIES[target.route], tuple(name for name in REPLY_HEADERS if name not in others))
    if target.route is not Route.EMBEDDINGS:
        sent["content"][_EVENTS] = {"schema": {"description": "Server-sent events, whose `data` is JSON or `[DONE]`."}}
    return sent


def _failure(status: int, method: str, target: Target, shape_of: dict[Any, Any]) -> dict[str, Any]:
    headers = ["x-request-id"]
    headers += ["retry-after"] if status in _RETRIED else []
    headers += _ALSO.get(status, ())
    if target.route is not None:
        headers += [_WAITED] if status in _LATE else []
        headers += (*_REPLAYED, _WHY) if status not in _REFUSED else ()
        headers += [name for name in REPLY_HEADERS if name.startswith("x-ratelimit-")]
    return _sent(phrase(status), method, shape_of[Failure], tuple(headers))


def _sent(words: str, method: str, schema: Any, headers: tuple[str, ...], media: str = JSON) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A response with these headers; one to HEAD has no body."""
    named = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    return {**response(words, media, None if method == "HEAD" else schema), "headers": named}
