"""What our OpenAPI 3.1 documents have in common: schemas made from types, parts of an operation, the one error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

__all__ = ["JSON", "OTHERS", "Failure", "bearer", "path_parameter", "phrase", "response", "schemas", "variables"]

JSON = "application/json"
OTHERS = "Any other failure"

_REF = "#/components/schemas/{name}"
_VARIABLE = re.compile(r"\{([^}]*)\}")
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*)$")


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


def schemas(kinds: Sequence[Any]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """The schema of each of these types, and the components that they refer to, by name."""
    shapes, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    described = {name: _described(schema) for name, schema in sorted(components.items())}
    return dict(zip(kinds, shapes, strict=True)), described


def bearer() -> dict[str, Any]:
    """The security scheme: a key as a bearer token."""
    return {"key": {"type": "http", "scheme": "bearer"}}


def phrase(status: int) -> str:
    """What HTTP calls a status."""
    return HTTPStatus(status).phrase


def response(words: str, media: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    """A response with a body of one media type, or with none."""
    described = {"description": words}
    return described if schema is None else {**described, "content": {media.partition(";")[0]: {"schema": schema}}}


def variables(path: str) -> list[str]:
    """The names of a path's variable parts."""
    return _VARIABLE.findall(path)


def path_parameter(name: str) -> dict[str, Any]:
    """A variable part of a path, which is any text."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


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
