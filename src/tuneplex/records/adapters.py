"""The versions that a fleet's adapters have, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from tuneplex.errors import StoreConflict
from tuneplex.records.tables import adapter_events, adapters
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord

__all__ = [
    "change_adapter",
    "check_adapters",
    "read_adapters",
    "read_events",
]

_KEPT_EVENTS = 1000
_LONGEST_RECORD = 900_000  # a backup's lines are a MiB at most


def read_adapters(connection: Connection, fleet: str) -> tuple[AdapterRecord, ...]:
    """All adapters of a fleet, by name."""
    found = connection.scalars(select(adapters.c.record).where(adapters.c.fleet == fleet))
    return tuple(sorted(map(_record, found), key=lambda record: record.name))


def read_events(connection: Connection, fleet: str, adapter: str = "", limit: int = 100) -> tuple[AdapterEvent, ...]:
    """What was done with the adapters of a fleet, or with one of them: the last events, oldest first."""
    columns = adapter_events.c
    those = [columns.fleet == fleet, *([columns.adapter == adapter] if adapter else [])]
    rows = connection.execute(select(adapter_events).where(*those).order_by(columns.number.desc()).limit(limit))
    return tuple(reversed([_event(row._mapping) for row in rows]))  # noqa: SLF001 - public, by its documentation


def change_adapter(
    connection: Connection, fleet: str, name: str, change: Callable[[AdapterRecord | None], AdapterChange]
) -> AdapterRecord | None:
    """Keep what `change` makes of an adapter's record, and what it says that was done; the record as it is now.

    Raises:
        StoreConflict: The record would be too large.
    """
    mine = adapters.c.fleet == fleet, adapters.c.name == name
    kept = connection.scalar(select(adapters.c.record).where(*mine))
    before = None if kept is None else _record(kept)
    record, events = change(before)
    if record is not None and _length(record) > _LONGEST_RECORD:
        raise StoreConflict(f"adapter {name}: its probes are too long to be kept")
    if record != before:
        connection.execute(delete(adapters).where(*mine))
        if record is not None:
            connection.execute(insert(adapters), {"fleet": fleet, "name": name, "record": record})
    _note(connection, fleet, events)
    return record


def check_adapters(connection: Connection) -> None:
    """See that all rows are such rows.

    Raises:
        msgspec.ValidationError: One is not.
    """
    for kept in connection.scalars(select(adapters.c.record)):
        _record(kept)
    for row in connection.execute(select(adapter_events)):
        msgspec.convert(msgspec.structs.asdict(_event(row._mapping)), AdapterEvent)  # noqa: SLF001 - as above


def _length(record: AdapterRecord) -> int:
    """Bytes in a backup: there it is a text within JSON."""
    return len(msgspec.json.encode(msgspec.json.encode(record).decode()))


def _note(connection: Connection, fleet: str, events: Sequence[AdapterEvent]) -> None:
    columns = adapter_events.c
    last = connection.scalar(select(func.max(columns.number)).where(columns.fleet == fleet)) or 0
    for number, event in enumerate(events, last + 1):
        row: dict[str, Any] = {"fleet": fleet, "number": number, **msgspec.structs.asdict(event)}
        connection.execute(insert(adapter_events), row)
    connection.execute(
        delete(adapter_events).where(columns.fleet == fleet, columns.number <= last + len(events) - _KEPT_EVENTS)
    )


def _record(kept: Any) -> AdapterRecord:  # noqa: ANN401 - JSON
    return msgspec.convert(kept, AdapterRecord)


def _event(row: Any) -> AdapterEvent:  # noqa: ANN401 - a row's mapping
    return AdapterEvent(**{name: row[name] for name in AdapterEvent.__struct_fields__})
