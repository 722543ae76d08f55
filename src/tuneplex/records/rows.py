"""Rows as values, and values as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, select

from tuneplex.errors import StoreConflict
from tuneplex.identity import Key, Tenant
from tuneplex.records import tables

__all__ = ["read_keys", "read_tenants", "row"]

_V = TypeVar("_V", Tenant, Key)


def read_tenants(connection: Connection) -> tuple[Tenant, ...]:
    """All tenants, by name."""
    found = connection.execute(select(tables.tenants))
    # Databases do not agree on the order of texts.
    return tuple(sorted((_value(row, Tenant) for row in found), key=lambda tenant: tenant.name))


def read_keys(connection: Connection, *conditions: ColumnElement[bool]) -> tuple[Key, ...]:
    """The keys that meet all conditions, oldest first."""
    found = connection.execute(select(tables.keys).where(*conditions))
    return tuple(sorted((_value(row, Key) for row in found), key=lambda key: (key.created, key.id)))


def row(value: Tenant | Key) -> dict[str, Any]:
    """A value as the columns of its row, which have the names of its fields.

    Raises:
        StoreConflict: A text holds what only one of the two databases would take.
    """
    text = "".join(_texts(value))
    if "\0" in text:
        raise StoreConflict("a text holds the character NUL, which the store cannot keep")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StoreConflict("a text holds half of a character") from error
    return msgspec.structs.asdict(value)


def _texts(value: Tenant | Key) -> Iterator[str]:
    for part in msgspec.structs.astuple(value):
        if isinstance(part, str):
            yield part
        elif isinstance(part, tuple):
            yield from part


def _value(found: Row[Any], kind: type[_V]) -> _V:
    # SQLAlchemy's names of columns are of a kind of text that msgspec does not take.
    return msgspec.convert({str(name): value for name, value in found._mapping.items()}, kind)  # noqa: SLF001 - public
