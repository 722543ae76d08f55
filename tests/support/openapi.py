"""Whether a value is an OpenAPI 3.1 document, as far as the documents of this project go.

The specification's objects as types that know no other fields: whatever a document says that is not written here is
either a mistake or has to be looked up in the specification and added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

__all__ = ["HTTP_METHODS", "Document", "Operation", "read"]

HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")

_SCHEMA_KEYWORDS = {
    "$ref", "additionalProperties", "anyOf", "default", "description", "enum", "items", "maxLength", "maximum",
    "exclusiveMinimum", "minLength", "minimum", "pattern", "properties", "required", "title", "type",
    "maxItems", "minItems", "prefixItems", "uniqueItems",
}  # fmt: skip
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_COMPONENT = re.compile(r"#/components/schemas/([A-Za-z0-9._-]+)")


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a document."""


class Info(Part):
    """See the Info Object."""

    title: str
    version: str
    description: str


class Server(Part):
    """See the Server Object."""

    url: str


class Media(Part):
    """See the Media Type Object."""

    schema: dict[str, Any]


class Parameter(Part):
    """See the Parameter Object."""

    name: str
    schema: dict[str, Any]
    where: Literal["path", "query", "header"] = msgspec.field(name="in")
    required: bool = False
    description: str = ""


class Body(Part):
    """See the Request Body Object."""

    content: dict[str, Media]
    required: bool = False


class Reference(Part):
    """See the Reference Object."""

    to: str = msgspec.field(name="$ref")


class Header(Part):
    """See the Header Object."""

    description: str
    schema: dict[str, Any]
    required: bool = False


class Answer(Part):
    """See the Response Object."""

    description: str
    content: dict[str, Media] = {}
    headers: dict[str, Reference] = {}


class Operation(Part):
    """See the Operation Object."""

    operation_id: str = msgspec.field(name="operationId")
    summary: str
    responses: dict[str, Answer]
    parameters: list[Parameter] = []
    body: Body | None = msgspec.field(name="requestBody", default=None)
    security: list[dict[str, list[str]]] | None = None


class Item(Part):
    """See the Path Item Object."""

    get: Operation | None = None
    head: Operation | None = None
    post: Operation | None = None
    patch: Operation | None = None
    delete: Operation | None = None

    def operations(self) -> dict[str, Operation]:
        """By method, in upper case."""
        found = {name.upper(): getattr(self, name) for name in self.__struct_fields__}
        return {name: operation for name, operation in found.items() if operation is not None}


class Bearer(Part):
    """See the Security Scheme Object."""

    type: Literal["http"]
    scheme: Literal["bearer"]


class Components(Part):
    """See the Components Object."""

    schemas: dict[str, dict[str, Any]]
    security: dict[str, Bearer] = msgspec.field(name="securitySchemes")
    headers: dict[str, Header] = {}


class Document(Part):
    """See the OpenAPI Object."""

    openapi: Literal["3.1.0"]
    info: Info
    servers: list[Server]
    security: list[dict[str, list[str]]]
    paths: dict[str, Item]
    components: Components


def read(content: bytes) -> Document:
    """The document, once all of it holds together."""
    document = msgspec.json.decode(content, type=Document)
    operations = [(path, one) for path, item in document.paths.items() for one in item.operations().values()]
    names = [operation.operation_id for _path, operation in operations]
    assert len(set(names)) == len(names)
    assert all(set(needed) <= set(document.components.security) for needed in document.security)
    for path, operation in operations:
        _check_operation(path, operation)
    sent = [one.headers for _path, operation in operations for one in operation.responses.values()]
    assert {(name, one.to) for headers in sent for name, one in headers.items()} == {
        (name, f"#/components/headers/{name}") for name in document.components.headers
    }
    used = set()
    for schema in _schemas(document):
        used |= _check_schema(schema)
    assert used == set(document.components.schemas), "a schema is missing, or nobody uses it"
    return document


def _check_operation(path: str, operation: Operation) -> None:
    assert path.startswith("/")
    variables = set(re.findall(r"\{(\w+)\}", path))
    assert variables == {one.name for one in operation.parameters if one.where == "path"}
    assert all(one.required for one in operation.parameters if one.where == "path")
    assert len({(one.name, one.where) for one in operation.parameters}) == len(operation.parameters)
    assert all(
        re.fullmatch(r"[1-5](\d\d|XX)|default", status) and one.description
        for status, one in operation.responses.items()
    )


def _schemas(document: Document) -> Iterator[dict[str, Any]]:
    yield from document.components.schemas.values()
    yield from (header.schema for header in document.components.headers.values())
    for item in document.paths.values():
        for operation in item.operations().values():
            yield from (parameter.schema for parameter in operation.parameters)
            bodies = [operation.body, *operation.responses.values()]
            yield from (media.schema for body in bodies if body is not None for media in body.content.values())


def _check_schema(schema: dict[str, Any]) -> set[str]:
    """The names of the schemas that it refers to."""
    assert set(schema) <= _SCHEMA_KEYWORDS, set(schema) - _SCHEMA_KEYWORDS
    kind = schema.get("type", "string")
    assert set(kind if isinstance(kind, list) else [kind]) <= _TYPES
    assert set(schema.get("required", ())) <= set(schema.get("properties", {}))
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    parts += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    found = {_component(schema["$ref"])} if "$ref" in schema else set()
    return found.union(*map(_check_schema, parts))


def _component(reference: str) -> str:
    matched = _COMPONENT.fullmatch(reference)
    assert matched is not None, reference
    return matched[1]
