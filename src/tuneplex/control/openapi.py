"""The admin API as an OpenAPI 3.1 document, from the same table that its routes are made of: pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from tuneplex.control.operations import JSON, Operation, Query

__all__ = ["Failure", "document"]

_REF = "#/components/schemas/{name}"
_VARIABLE = re.compile(r"\{([^}]*)\}")
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*)$")
_EVERYWHERE = (401, 403)
_OTHERS = "Any other failure"


class FailureDetail(msgspec.Struct, frozen=True):
    """What went wrong.

    Attributes:
        message: For people.
        type: The kind of error, as OpenAI's API calls it.
        param: The path of the field at fault, if one is.
        code: A short machine-readable reason, if there is one.
    """

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(msgspec.Struct, frozen=True):
    """Every answer that is no success."""

    error: FailureDetail


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The document of these operations.

    Args:
        operations: All of the API.
        version: Of tuneplex.
    """
    kinds = [kind for operation in operations for kind in (operation.body, operation.answer) if kind is not None]
    shapes, components = msgspec.json.schema_components([Failure, *kinds], ref_template=_REF)
    shape_of = dict(zip([Failure, *kinds], shapes, strict=True))
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
            "schemas": {name: _described(schema) for name, schema in sorted(components.items())},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, shape_of: dict[Any, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    parameters = [*map(_path_parameter, _VARIABLE.findall(operation.path)), *map(_query_parameter, operation.query)]
    if parameters:
        written["parameters"] = parameters
    if operation.body is not None:
        written["requestBody"] = {"required": True, "content": {JSON: {"schema": shape_of[operation.body]}}}
    success = _response(_phrase(operation.status), operation.media, _answer_shape(operation, shape_of))
    failures = {
        str(status): _response(_phrase(status), JSON, shape_of[Failure]) for status in (*operation.errors, *_EVERYWHERE)
    }
    # The gateway sends all of it on, so its own refusals, and control's absence, belong to every operation.
    others = {"default": _response(_OTHERS, JSON, shape_of[Failure])}
    written["responses"] = {**dict(sorted({str(operation.status): success, **failures}.items())), **others}
    return written


def _answer_shape(operation: Operation, shape_of: dict[Any, Any]) -> dict[str, Any] | None:
    if operation.answer is not None:
        found: dict[str, Any] = shape_of[operation.answer]
        return found
    return None if operation.status == HTTPStatus.NO_CONTENT else {"type": "string"}


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def _response(words: str, media: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    described = {"description": words}
    return described if schema is None else {**described, "content": {media.partition(";")[0]: {"schema": schema}}}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameter(query: Query) -> dict[str, Any]:
    schema = {"type": "string", "enum": ["0", "1"], "default": "0"} if query.flag else {"type": "string"}
    return {"name": query.name, "in": "query", "description": query.summary, "schema": schema}


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose properties say themselves what the class's docstring says of them."""
    if "properties" not in schema:
        return schema
    summary, _, listed = schema.get("description", "").partition("Attributes:\n")
    listed, _, rest = listed.partition("\n\n")
    words = _attributes(listed)
    properties = {
        name: {**shape, "description": words[name]} if name in words else shape
        for name, shape in schema["properties"].items()
    }
    description = "\n\n".join(filter(None, (summary.strip(), rest.strip())))
    return {**schema, "description": description, "properties": properties}


def _attributes(section: str) -> dict[str, str]:
    """What a docstring's section says of each attribute; a line that is indented further goes on with the last one."""
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        matched = _ATTRIBUTE.match(line)
        if matched is not None:
            name = matched[1]
            found[name] = matched[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found
