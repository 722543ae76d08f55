"""Requests that are over: kept once each, found again, and after a while only added up by the day."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuneplex.journal import Finished, Tried
from tuneplex.records.tables import requests, usage_days

__all__ = [
    "DAY_S",
    "MOST_FOUND",
    "expire_requests",
    "find_requests",
    "keep_requests",
    "read_arrivals",
    "read_requests",
]

DAY_S = 86400
_DAYS_IN_JOURNALS = 1  # their files are turned each hour, and go when the store has what is in them
_MOST = 2**40  # tokens of one request, see `engines.usage`; sums of them must fit, too
_LATEST_S = 2.0**33
MOST_FOUND = 100  # of one id: a client may give the same to all that it asks
_BATCH = 500
_EXPIRED_AT_ONCE = 1000
_READ_AT_ONCE = 1000
_NOT_KEPT = re.compile("[\0\ud800-\udfff]")  # what one of the databases would not take
_SUMS = ("requests", "prompt", "cached", "completion")
_GROUP = ("fleet", "day", "tenant", "key_id", "model", "version", "pool", "outcome", "estimated")


def keep_requests(connection: Connection, fleet: str, finished: Sequence[Finished]) -> None:
    """Keep requests; those that are there already stay as they are."""
    for start in range(0, len(finished), _BATCH):
        rows = [_row(fleet, one) for one in finished[start : start + _BATCH]]
        _insert_new(connection, requests, rows)


def find_requests(connection: Connection, fleet: str, request_id: str) -> list[Finished]:
    """The requests that clients know by this id, oldest first: mostly one, and the last `MOST_FOUND` at most."""
    mine = select(requests).where(requests.c.request_id == request_id, requests.c.fleet == fleet)
    last = mine.order_by(requests.c.arrived.desc(), requests.c.id.desc()).limit(MOST_FOUND)
    return [_finished(row) for row in connection.execute(last)][::-1]


def read_requests(connection: Connection, fleet: str, since: float, until: float) -> Iterator[Finished]:
    """The requests of a fleet that were over in a time, in the order of their ends.

    Args:
        connection: To the database.
        fleet: The fleet's name.
        since: Unix time.
        until: Unix time, not included.
    """
    columns = requests.c
    days = columns.day >= int(since // DAY_S), columns.day <= int(until // DAY_S)
    times = columns.closed >= int(since * 1000), columns.closed < int(until * 1000)
    mine = select(requests).where(columns.fleet == fleet, *days, *times).order_by(columns.closed, columns.id)
    for row in connection.execution_options(yield_per=_READ_AT_ONCE).execute(mine):
        yield _finished(row)


def read_arrivals(connection: Connection, fleet: str, since: float, until: float) -> Iterator[Finished]:
    """The requests of a fleet that came in a time and are over, in the order in which they came; see above."""
    columns = requests.c
    times = columns.arrived >= int(since * 1000), columns.arrived < int(until * 1000)
    mine = select(requests).where(columns.fleet == fleet, columns.day >= int(since // DAY_S), *times)
    ordered = mine.order_by(columns.arrived, columns.id)
    for row in connection.execution_options(yield_per=_READ_AT_ONCE).execute(ordered):
        yield _finished(row)


def expire_requests(connection: Connection, fleet: str, before: int) -> int:
    """Add up some requests of the days before this one, and let go of them; how many they were, 0 if all are gone."""
    mine = requests.c.fleet == fleet
    # What is older cannot be in a journal any more. Of requests that come again when their row is gone, nobody would
    # know that they have been added up. A clock that jumps must not matter here, so days go by the store.
    newest = connection.scalar(select(func.max(requests.c.day)).where(mine)) or 0
    old = select(requests.c.id).where(mine, requests.c.day < min(before, newest - _DAYS_IN_JOURNALS))
    found = connection.scalars(old.order_by(requests.c.day).limit(_EXPIRED_AT_ONCE)).all()
    those = requests.c.id.in_(found)
    sums = [func.sum(requests.c.count), *(func.sum(requests.c[name]) for name in _SUMS[1:])]
    keys = [requests.c[name] for name in _GROUP]
    for row in connection.execute(select(*keys, *sums).where(those).group_by(*keys)).all():
        _add(connection, dict(zip((*_GROUP, *_SUMS), row, strict=True)))
    connection.execute(delete(requests).where(those))
    return len(found)


def _add(connection: Connection, row: dict[str, Any]) -> None:
    """Add to a day: a crashed gateway's requests can be found after it was added up."""
    row = {name: int(value) if name in _SUMS else value for name, value in row.items()}
    same = [usage_days.c[name] == row[name] for name in _GROUP]
    more = {name: usage_days.c[name] + row[name] for name in _SUMS}
    if not connection.execute(update(usage_days).where(*same).values(more)).rowcount:
        connection.execute(insert(usage_days), row)


def _insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def _row(fleet: str, one: Finished) -> dict[str, Any]:
    """Written out: it runs for every request."""
    first = one.first_token_s
    return {
        "id": one.id,
        "fleet": fleet,
        "request_id": one.request_id,
        "arrived": int(_time(one.arrived) * 1000),
        "closed": int(_time(one.closed) * 1000),
        "day": int(_time(one.closed) // DAY_S),
        "tenant": one.tenant,
        "key_id": one.key_id,
        "model": one.model,
        "version": one.version,
        "route": one.route,
        "pool": one.pool,
        "replica": one.replica,
        "outcome": one.outcome,
        "code": _kept(one.code),
        "status": one.status,
        "stream": one.stream,
        "estimated": one.estimated,
        "prompt": min(one.prompt, _MOST),
        "cached": min(one.cached, _MOST),
        "completion": min(one.completion, _MOST),
        "waited_ms": int(_time(one.waited_s) * 1000),
        "first_token_ms": None if first is None else int(_time(first) * 1000),
        "session": one.session,
        "trace": _kept(one.trace),
        "count": one.count,
        "attempts": one.attempts,
    }


def _time(seconds: float) -> float:
    """One that the store can hold: no value must keep all others from being kept."""
    return seconds if 0 <= seconds < _LATEST_S else 0.0


def _kept(text: str) -> str:
    """Without what only one of the databases would take: an engine's words and a client's headers can be anything."""
    return _NOT_KEPT.sub("", text) if text else text


def _finished(row: Iterable[Any]) -> Finished:
    found = dict(zip((column.name for column in requests.c), row, strict=True))
    first, attempts = found.pop("first_token_ms"), found.pop("attempts")
    found |= {
        "arrived": found["arrived"] / 1000,
        "closed": found["closed"] / 1000,
        "waited_s": found.pop("waited_ms") / 1000,
        "first_token_s": None if first is None else first / 1000,
    }
    for name in ("fleet", "day"):
        del found[name]
    return Finished(**found, attempts=msgspec.convert(attempts, list[Tried]))
