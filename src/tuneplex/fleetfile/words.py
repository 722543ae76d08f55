"""Turns the first error that the schema found into one message for people."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tuneplex.errors import FleetFileError
from tuneplex.fleetfile.places import KeyPath, Places
from tuneplex.fleetfile.schema import FleetFile

__all__ = ["SECRET_KEYS", "first_error"]

# Keys whose values, and whatever stands below them, never appear in a message.
SECRET_KEYS = frozenset({"key", "key_env", "env", "engine_args", "store"})
_SHOWN = 50

_Say = Callable[[ErrorDetails, str], tuple[str, str]]


def first_error(error: ValidationError, places: Places) -> FleetFileError:
    """The error that stands first in the file, with its line, its key and what to do."""
    details = min(error.errors(include_url=False), key=lambda item: places.nearest(_path(item)))
    path = _path(details)
    if details["type"] == "extra_forbidden":
        message, hint = _unknown(path)
    elif details["type"] == "missing":
        message, hint = "is missing", _description(path)
    else:
        say = _SAY.get(details["type"], _other)
        message, hint = say(details, _shown(details["input"], secret=not SECRET_KEYS.isdisjoint(path)))
    return places.error(path, message, hint=hint)


def _path(details: ErrorDetails) -> KeyPath:
    """Pydantic marks an error in the key itself with a last part `[key]`."""
    return tuple(part for part in details["loc"] if part != "[key]")


def _shown(value: Any, *, secret: bool) -> str:  # noqa: ANN401 - it is whatever the file has
    """A value in a few words."""
    kinds: Mapping[type, str] = {str: "text", bool: "true or false", int: "a number", float: "a number"}
    kinds = {**kinds, list: "a list", dict: "a mapping", type(None): "nothing"}
    if secret or not isinstance(value, str | int | float):
        return kinds.get(type(value), "this")
    if isinstance(value, bool):
        return str(value).lower()
    text = f"the text {value!r}" if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _unknown(path: KeyPath) -> tuple[str, str]:
    key = str(path[-1])
    known = sorted(_section(FleetFile, path[:-1]).model_fields)
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return "unknown key", f"did you mean {near[0]!r}?"
    elsewhere = [place for place in _places_of(FleetFile, key) if place]
    return "unknown key", f"it belongs under {elsewhere[0]}" if elsewhere else f"known here: {', '.join(known)}"


def _section(model: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    """The section of the schema that a path leads to; names of adapters and pools are skipped."""
    named = False
    for part in path:
        field = None if named else model.model_fields.get(str(part))
        named = field is not None and "dict" in str(field.annotation)
        model = _inner(field.annotation) or model if field else model
    return model


def _description(path: KeyPath) -> str:
    """What the schema says about a key, as a hint."""
    text = _section(FleetFile, path[:-1]).model_fields[str(path[-1])].description or ""
    return text[:1].lower() + text[1:].rstrip(".")


def _inner(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - annotations are of any kind
    """The section within `Section`, `Section | None` or `dict[str, Section]`."""
    found = [part for part in (annotation, *get_args(annotation)) if _is_section(part)]
    return found[0] if found else None


def _is_section(part: Any) -> bool:  # noqa: ANN401 - the same
    return isinstance(part, type) and issubclass(part, BaseModel)


def _places_of(model: type[BaseModel], key: str, prefix: str = "") -> list[str]:
    """The sections of the whole schema that know a key: `pools.NAME`."""
    found = [prefix] if key in model.model_fields else []
    for name, field in model.model_fields.items():
        section = _inner(field.annotation)
        if section is not None:
            named = ".NAME" if "dict" in str(field.annotation) else ""
            found += _places_of(section, key, f"{prefix}.{name}{named}".lstrip("."))
    return found


def _should_be(kind: str) -> _Say:
    return lambda details, shown: (f"should be {kind}, not {shown}", _quotes(kind, details["input"]))


def _quotes(kind: str, value: object) -> str:
    """Most wrong types are a matter of quotes."""
    if kind == "text" and isinstance(value, bool | int | float):
        return "put it in quotes if it is meant as text"
    quoted = isinstance(value, str) and (value.isdecimal() or value.lower() in {"true", "false"})
    return "remove the quotes" if quoted and kind in {"a whole number", "true or false"} else ""


def _bound(words: str, name: str) -> _Say:
    return lambda details, shown: (f"should be {words} {details['ctx'][name]}, not {shown}", "")


def _choice(details: ErrorDetails, shown: str) -> tuple[str, str]:
    return f"should be {details['ctx']['expected']}, not {shown}", ""


def _own(details: ErrorDetails, _shown: str) -> tuple[str, str]:
    """A ValueError from one of our own parsers, which already speaks to people."""
    return str(details["ctx"]["error"]), ""


def _other(_details: ErrorDetails, shown: str) -> tuple[str, str]:
    return f"cannot be {shown}", "docs/fleet-file.md describes each key"


_SAY: Mapping[str, _Say] = {
    "string_type": _should_be("text"),
    "string_unicode": _should_be("text"),
    "int_type": _should_be("a whole number"),
    "int_from_float": _should_be("a whole number"),
    "float_type": _should_be("a number"),
    "finite_number": _should_be("a number"),
    "bool_type": _should_be("true or false"),
    "list_type": _should_be("a list"),
    "dict_type": _should_be("keys and values"),
    "model_type": _should_be("keys and values"),
    "model_attributes_type": _should_be("keys and values"),
    "literal_error": _choice,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "value_error": _own,
}
