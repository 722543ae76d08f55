"""Values that satisfy a JSON schema, for replies under `response_format` and for tool calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["instance"]

Schema = Mapping[str, Any]


def instance(schema: Schema, say: str, root: Schema | None = None) -> Any:  # noqa: ANN401 - a schema may ask for any JSON
    """A value that is valid under `schema`, as far as the schema uses the plain keywords.

    Understood are `type`, `properties`, `items`, `prefixItems`, `enum`, `const`, `$ref` within the schema, `anyOf`,
    `oneOf`, `allOf`, and the bounds of strings, numbers and arrays. `pattern` and `format` are not.

    Args:
        schema: What the value has to satisfy.
        say: Strings are made of this.
        root: Where `$ref` looks; the schema itself by default.
    """
    root = schema if root is None else root
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][len(say) % len(schema["enum"])]
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return instance(schema[either][0], say, root)
    return _of_type(_type_of(schema), schema, say, root)


def _resolved(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        target: Any = root
        for key in schema["$ref"].removeprefix("#").strip("/").split("/"):
            target = target[key.replace("~1", "/").replace("~0", "~")] if key else target
        schema = target
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema.get("allOf", ()):
        resolved = _resolved(part, root)
        properties = {**merged.get("properties", {}), **resolved.get("properties", {})}
        merged = {**merged, **resolved} | ({"properties": properties} if properties else {})
    return merged


def _type_of(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return str(kind[0])
    if kind is None:
        return "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind)


def _of_type(kind: str, schema: Schema, say: str, root: Schema) -> Any:  # noqa: ANN401 - see instance
    if kind == "object":
        return {name: instance(part, say, root) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return _array(schema, say, root)
    if kind in ("integer", "number"):
        number = _number(schema, 1 if kind == "integer" else 0.5)
        return math.ceil(number) if kind == "integer" else number
    simple = {"boolean": True, "null": None}
    return simple[kind] if kind in simple else _string(schema, say)


def _array(schema: Schema, say: str, root: Schema) -> list[Any]:
    first: list[Any] = [instance(part, say, root) for part in schema.get("prefixItems", ())]
    wanted: int = max(schema.get("minItems", 1), len(first))
    most: int = schema.get("maxItems", wanted)
    items = schema.get("items")
    further = [instance(items, say, root)] if isinstance(items, Mapping) else [say]
    return first + further * (min(wanted, most) - len(first))


def _number(schema: Schema, step: float) -> float:
    low: float = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + step)
    high: float = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - step)
    number: float = low if low > -math.inf else min(7, high)
    multiple: float | None = schema.get("multipleOf")
    return math.ceil(number / multiple) * multiple if multiple else number


def _string(schema: Schema, say: str) -> str:
    shortest: int = schema.get("minLength", 0)
    longest: int = schema.get("maxLength", len(say))
    text = say[:longest]
    return text + "x" * (shortest - len(text))
