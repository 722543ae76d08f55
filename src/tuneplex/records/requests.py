"""Requests that are over: kept once each, found again, and after a while only added up by the day."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuneplex.journal import Finished, Tried
from tuneplex.records.tables import added_up, requests, usage_days

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
MOST_FOUND = 100  # of one id: a client may give the same to all that it asks
_BATCH = 500
_DAYS_IN_JOURNALS = 1  # their files are turned each hour, and go when the store has what is in them
_EXPIRED_AT_ONCE = 1000
_READ_AT_ONCE = 1000
_MOST = 2**40  # tokens of one request: more is an engine's mistake, and must not keep sums from being made
_MOST_COUNT = 2**31 - 1
_LAST_S = 253_402_300_799.0  # of the year 9999
_NOT_KEPT = re.compile("[\0\ud800-\udfff]")  # what one of the databases would not take
_SUMS = ("requests", "prompt", "cached", "completion")
_GROUP = ("fleet", "day", "tenant", "key_id", "model", "version", "pool", "outcome", "estimated")
_log = logging.getLogger(__name__)


def keep_requests(connection: Connection, fleet: str, finished: Sequence[Finished]) -> None:
    """Keep requests; those that are there already, or were and are added up, stay as they are."""
    before = _added_up_before(connection, fleet)
    rows = [row for row in (_row(fleet, one) for one in finished) if before is None or row["day"] >= before]
    for start in range(0, len(rows), _BATCH):
        _insert_new(connection, requests, rows[start : start + _BATCH])
    if len(rows) < len(finished):
        _log.info("%d requests of days that are added up were not kept (again)", len(finished) - len(rows))


def find_requests(connection: Connection, fleet: str, request_id: str) -> list[Finished]:
    """The requests that clients know by this id, oldest first: mostly one, and the last `MOST_FOUND` at most."""
    mine = select(requests).where(requests.c.request_id == request_id, requests.c.fleet == fleet)
    last = mine.order_by(requests.c.arrived.desc(), requests.c.id.desc()).limit(MOST_FOUND)
    return [_finished(row) for row in connection.execute(last)][::-1]


def read_requests(connection: Connection, fleet: str, since: float, until: float) -> Generator[Finished]:
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
    with connection.execution_options(yield_per=_READ_AT_ONCE).execute(mine) as rows:  # not all may be read
        for row in rows:
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
    # What a journal may still have stays: a clock that jumps must not matter here, so days go by the store.
    newest = connection.scalar(select(func.max(requests.c.day)).where(mine)) or 0
    old = select(requests.c.id, requests.c.day).where(mine, requests.c.day < min(before, newest - _DAYS_IN_JOURNALS))
    found = connection.execute(old.order_by(requests.c.day).limit(_EXPIRED_AT_ONCE)).all()
    if not found:
        return 0
    _set_added_up(connection, fleet, found[-1].day + 1)
    _add_up(connection, requests.c.id.in_([row.id for row in found]))
    return len(found)


def _added_up_before(connection: Connection, fleet: str) -> int | None:
    found: int | None = connection.scalar(select(added_up.c.before_day).where(added_up.c.fleet == fleet))
    return found


def _set_added_up(connection: Connection, fleet: str, day: int) -> None:
    """Not further than what is added up: a clock that was wrong once must not keep out what comes later."""
    before = _added_up_before(connection, fleet)
    if before is None:
        connection.execute(insert(added_up), {"fleet": fleet, "before_day": day})
    elif day > before:
        connection.execute(update(added_up).where(added_up.c.fleet == fleet).values(before_day=day))


def _add_up(connection: Connection, mine: ColumnElement[bool]) -> None:
    """Add up requests by the day, and let go of them."""
    sums = [func.sum(requests.c.count), *(func.sum(requests.c[name]) for name in _SUMS[1:])]
    keys = [requests.c[name] for name in _GROUP]
    for row in connection.execute(select(*keys, *sums).where(mine).group_by(*keys)).all():
        _add(connection, dict(zip((*_GROUP, *_SUMS), row, strict=True)))
    connection.execute(delete(requests).where(mine))


def _add(connection: Connection, row: dict[str, Any]) -> None:
    """Add to a day: it is added up in steps."""
    row = {name: int(value) if name in _SUMS else value for name, value in row.items()}
    same = [usage_days.c[name] == row[name] for name in _GROUP]
    more = {name: usage_days.c[name] + row[name] for name in _SUMS}
    if not connection.execute(update(usage_days).where(*same).values(more)).rowcount:
        connection.execute(insert(usage_days), row)


def _insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def _row(fleet: str, one: Finished) -> dict[str, Any]:
    """Written out: it runs for every request. Whatever was in the journal, no database refuses it."""
    first, closed = one.first_token_s, _time(one.closed)
    return {
        "id": one.id,
        "fleet": fleet,
        "request_id": one.request_id,
        "arrived": int(_time(one.arrived) * 1000),
        "closed": int(closed * 1000),
        "day": int(closed // DAY_S),
        "tenant": one.tenant,
        "key_id": one.key_id,
        "model": one.model,
        "version": one.version,
        "route": one.route,
        "pool": one.pool,
        "replica": one.replica,
        "outcome": one.outcome,
        "code": _kept(one.code),
        "status": _number(one.status, _MOST_COUNT),
        "stream": one.stream,
        "estimated": one.estimated,
        "prompt": _number(one.prompt),
        "cached": _number(one.cached),
        "completion": _number(one.completion),
        "waited_ms": int(_time(one.waited_s) * 1000),
        "first_token_ms": None if first is None else int(_time(first) * 1000),
        "session": one.session,
        "trace": _kept(one.trace),
        "count": _number(one.count, _MOST_COUNT),
        "attempts": one.attempts if all(map(_is_finite, one.attempts)) else [_tried(each) for each in one.attempts],
    }


def _time(seconds: float) -> float:
    """Also of what is no number."""
    return seconds if 0.0 <= seconds <= _LAST_S else _LAST_S if seconds > 0 else 0.0


def _number(number: int, most: int = _MOST) -> int:
    return number if 0 <= number <= most else most if number > 0 else 0


def _is_finite(tried: Tried) -> bool:
    return math.isfinite(tried.at + tried.took_s)


def _tried(tried: Tried) -> Tried:
    """With times that JSON can say."""
    return msgspec.structs.replace(tried, at=_time(tried.at), took_s=_time(tried.took_s))


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
