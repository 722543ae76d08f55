"""Writes a new fleet file: the keys that are given, in the order of the reference, with comments beside adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

__all__ = ["Draft", "DraftAdapter", "DraftPool", "compose"]

# Text that YAML reads as itself, without quotes; all else is quoted.
_PLAIN = re.compile(r"(?:[A-Za-z_/~]|\./|\.\./)[A-Za-z0-9._/@+-]*(?::[A-Za-z0-9._/@+-]+)*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})
_QUOTED = frozenset('"\\')


class DraftAdapter(msgspec.Struct, frozen=True):
    """An adapter of a new fleet file; `note` stands beside it for people."""

    name: str
    source: str
    note: str = ""


class DraftPool(msgspec.Struct, frozen=True):
    """A pool of a new fleet file: keys that the schema knows, and flags for the engine."""

    name: str
    keys: dict[str, int | str] = {}
    engine_args: tuple[str, ...] = ()


class Draft(msgspec.Struct, frozen=True):
    """A new fleet file.

    Attributes:
        base: The base's source.
        base_name: What clients call it; empty leaves it to the source.
        adapters: In the order in which they are written.
        pools: None leaves it to the one that there is without any.
        gateway: Keys of the gateway.
        head: A comment above all, each a line.
    """

    base: str
    base_name: str = ""
    adapters: tuple[DraftAdapter, ...] = ()
    pools: tuple[DraftPool, ...] = ()
    gateway: dict[str, int | str] = {}
    head: tuple[str, ...] = ()


def compose(draft: Draft) -> str:
    """The file's text. `load` is still to say whether it is a valid fleet file."""
    return "\n".join(_lines(draft)) + "\n"


def _lines(draft: Draft) -> Iterator[str]:
    yield from (f"# {_comment(line)}" for line in draft.head)
    if draft.base_name:
        yield "base:"
        yield f"  source: {_scalar(draft.base)}"
        yield f"  name: {_scalar(draft.base_name)}"
    else:
        yield f"base: {_scalar(draft.base)}"
    if draft.adapters:
        yield "adapters:"
        yield from _aligned([(f"  {_scalar(one.name)}: {_scalar(one.source)}", one.note) for one in draft.adapters])
    if draft.pools:
        yield "pools:"
    for pool in draft.pools:
        yield f"  {_scalar(pool.name)}:"
        yield from (f"    {key}: {_scalar(value)}" for key, value in pool.keys.items())
        if pool.engine_args:
            yield "    engine_args:"
            yield from (f"      - {_scalar(flag)}" for flag in pool.engine_args)
    if draft.gateway:
        yield "gateway:"
        yield from (f"  {key}: {_scalar(value)}" for key, value in draft.gateway.items())


def _aligned(lines: list[tuple[str, str]]) -> Iterator[str]:
    width = max(len(line) for line, _note in lines)
    for line, note in lines:
        yield f"{line.ljust(width)}  # {_comment(note)}" if note else line


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _scalar(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else f'"{"".join(map(_escaped, value))}"'


def _escaped(char: str) -> str:
    if char in _QUOTED:
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"
