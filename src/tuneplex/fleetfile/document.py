"""Reads a YAML file into plain values and the line of every key.

The values follow YAML 1.2: only `true` and `false` are booleans (an adapter may be called `no`), and a date is text.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tuneplex.errors import FleetFileError
from tuneplex.fleetfile.places import KeyPath, Places, error_at

__all__ = ["Value", "read_document"]

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]

_MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 32
_MAX_VALUES = 100_000
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_TAG + kind for kind in ("null", "bool", "int", "float", "str", "map", "seq", "merge"))
# A longer number than this is not a number anybody means, and Python refuses to convert much longer ones.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})")

_SURROGATE = re.compile("[\ud800-\udfff]")  # an escape can make one; no file or program takes it


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by YAML 1.2's core rules instead of PyYAML's YAML 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as the base class has it


_Loader.add_implicit_resolver(_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_TAG + "int", re.compile(_INT.pattern + "$"), list("-+0123456789"))
_Loader.add_implicit_resolver(_TAG + "float", re.compile(_FLOAT.pattern + "$"), list("-+.0123456789"))
_Loader.add_implicit_resolver(_TAG + "merge", re.compile(r"<<$"), ["<"])


def read_document(path: Path) -> tuple[Value, Places]:
    """Read the one YAML document in a file.

    Raises:
        FleetFileError: It cannot be read, is not YAML, or says something twice.
    """
    text = _text(path)
    try:
        node = yaml.compose(text, _Loader)
        if node is None:
            raise FleetFileError(f"{path}:1: the file is empty", hint="it needs at least 'base: SOURCE'")
        return _Builder(str(path)).build(node)
    except yaml.YAMLError as error:
        raise _syntax_error(path, error) from None
    except RecursionError:
        raise FleetFileError(f"{path}:1: values are nested too deeply, or an anchor contains itself") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FleetFileError(f"{path}: cannot be read: {error.strerror}", hint="name a fleet file") from None
    if len(data) > _MAX_BYTES:
        raise FleetFileError(f"{path}: is larger than 1 MiB; this cannot be a fleet file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FleetFileError(f"{path}:{line}: is not UTF-8 text", hint="save the file as UTF-8") from None


def _syntax_error(path: Path, error: yaml.YAMLError) -> FleetFileError:
    """Say where and what, without the file's text, which may hold a key."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return FleetFileError(f"{path}: holds a character that YAML does not allow", hint="save the file as UTF-8")
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or "cannot be read"
    if "'\\t'" in problem:
        return FleetFileError(f"{path}:{line}: a tab indents this line", hint="YAML wants spaces")
    if "document" in problem or "document" in (error.context or ""):
        return FleetFileError(f"{path}:{line}: holds more than one YAML document", hint="remove the line '---'")
    return FleetFileError(f"{path}:{line}: is not valid YAML: {problem}")


class _Builder:
    """Turns composed nodes into values; one for each file, because it counts and notes lines."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[KeyPath, int] = {}
        self._count = 0

    def build(self, node: yaml.Node) -> tuple[Value, Places]:
        """The document's value, and the places of its keys."""
        value = self._value(node, ())
        return value, Places(self._file, self._lines)

    def _value(self, node: yaml.Node, path: KeyPath) -> Value:
        self._guard(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return _scalar(node)

    def _item(self, node: yaml.Node, path: KeyPath) -> Value:
        self._lines[path] = _line(node)
        return self._value(node, path)

    def _guard(self, node: yaml.Node, path: KeyPath) -> None:
        """Anchors make small files expand without end, or contain themselves."""
        self._count += 1
        if len(path) > _MAX_DEPTH or self._count > _MAX_VALUES:
            raise FleetFileError(f"{self._file}:{_line(node)}: values are nested too deeply, or there are too many")
        if node.tag not in _PLAIN_TAGS:
            raise self._error(node, path, "has a YAML tag", hint="write plain values, without '!'")
        if isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
            raise self._error(node, path, "holds half a character", hint="write the character itself")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Value]:
        values = self._merged(node, path)
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            key = self._key(key_node, path)
            if key in seen:
                raise self._error(key_node, (*path, key), f"is given twice, first on line {seen[key]}")
            seen[key] = self._lines[(*path, key)] = _line(key_node)
            values[key] = self._value(value_node, (*path, key))
        return values

    def _merged(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Value]:
        """What `<<: *anchor` brings in; of several, the first one wins."""
        values: dict[str, Value] = {}
        for source in (value for key, value in node.value if key.tag == _TAG + "merge"):
            parts = source.value if isinstance(source, yaml.SequenceNode) else [source]
            for part in reversed(parts):
                self._guard(part, (*path, "<<"))
                if not isinstance(part, yaml.MappingNode):
                    raise self._error(part, (*path, "<<"), "merges something that is not a mapping")
                values |= self._mapping(part, path)
        return values

    def _key(self, node: yaml.Node, path: KeyPath) -> str:
        """A key is always the text that stands there: `1234:` and `no:` are names like any other."""
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, path, "has a key that is not plain text")
        self._guard(node, path)
        return str(node.value)

    def _error(self, node: yaml.Node, path: KeyPath, message: str, *, hint: str = "") -> FleetFileError:
        return error_at(self._file, _line(node), path, message, hint)


def _scalar(node: yaml.Node) -> str | float | bool | None:
    text = str(node.value)
    kind = node.tag.removeprefix(_TAG)
    if kind == "bool" and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if kind == "int" and _INT.fullmatch(text):
        return int(text)
    if kind == "float" and (_FLOAT.fullmatch(text) or _INT.fullmatch(text)):
        return float(text)
    return None if kind == "null" else text


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
