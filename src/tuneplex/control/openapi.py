"""The admin API as an OpenAPI 3.1 document, from the same table that its routes are made of: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from tuneplex.control.operations import Operation, Query
from tuneplex.openapi import JSON, OTHERS, Failure, bearer, path_parameter, phrase, response, schemas, variables

__all__ = ["document"]

_EVERYWHERE = (401, 403)


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The document of these operations.

    Args:
        operations: All of the API.
        version: Of tuneplex.
    """
    kinds = [kind for operation in operations for kind in (operation.body, operation.answer) if kind is not None]
    shape_of, components = schemas([Failure, *kinds])
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, shape_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tuneplex admin API",
            "version": version,
            "description": "For keys with the scope `admin`; on the fleet's admin socket no key is needed.",
        },
        "servers": [{"url": "/admin"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": bearer(),
        },
    }


def _operation(operation: Operation, shape_of: dict[Any, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    parameters = [*map(path_parameter, variables(operation.path)), *map(_query_parameter, operation.query)]
    if parameters:
        written["parameters"] = parameters
    if operation.body is not None:
        written["requestBody"] = {"required": True, "content": {JSON: {"schema": shape_of[operation.body]}}}
    success = response(phrase(operation.status), operation.media, _answer_shape(operation, shape_of))
    failures = {
        str(status): response(phrase(status), JSON, shape_of[Failure]) for status in (*operation.errors, *_EVERYWHERE)
    }
    # The gateway sends all of it on, so its own refusals, and control's absence, belong to every operation.
    others = {"default": response(OTHERS, JSON, shape_of[Failure])}
    written["responses"] = {**dict(sorted({str(operation.status): success, **failures}.items())), **others}
    return written


def _answer_shape(operation: Operation, shape_of: dict[Any, Any]) -> dict[str, Any] | None:
    if operation.answer is not None:
        found: dict[str, Any] = shape_of[operation.answer]
        return found
    return None if operation.status == HTTPStatus.NO_CONTENT else {"type": "string"}


def _query_parameter(query: Query) -> dict[str, Any]:
    schema = {"type": "string", "enum": ["", "0", "1"], "default": "0"} if query.flag else {"type": "string"}
    return {"name": query.name, "in": "query", "description": query.summary, "schema": schema}
