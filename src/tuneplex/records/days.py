"""The tokens of each day, by fleet, by subject, and by the gateway process that counted them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select

from tuneplex.records.tables import usage_days

__all__ = ["Counted", "Day", "check_days", "forget_days", "read_day", "write_days"]

Day = dict[str, dict[str, int]]
"""Subject -> process -> tokens."""
Counted = tuple[str, int, str]
"""Subject, day, process."""

_KEPT_DAYS = 31
_COLUMNS = usage_days.c
_KEY = ("fleet", "subject", "day", "process")


def read_day(connection: Connection, fleet: str, day: int) -> Day:
    """What a fleet has counted on a day."""
    found: Day = {}
    rows = select(_COLUMNS.subject, _COLUMNS.process, _COLUMNS.tokens)
    for row in connection.execute(rows.where(_COLUMNS.fleet == fleet, _COLUMNS.day == day)):
        # SQLite keeps a text in a column of numbers, too.
        subject, process, tokens = msgspec.convert(tuple(row), tuple[str, str, int])
        found.setdefault(subject, {})[process] = tokens
    return found


def write_days(connection: Connection, fleet: str, counted: Mapping[Counted, int]) -> None:
    """Put these rows in the place of those that are there."""
    if not counted:
        return
    rows = [
        {"fleet": fleet, "subject": subject, "day": day, "process": process, "tokens": tokens}
        for (subject, day, process), tokens in counted.items()
    ]
    same = delete(usage_days).where(*(_COLUMNS[name] == bindparam(f"of_{name}") for name in _KEY))
    connection.execute(same, [{f"of_{name}": row[name] for name in _KEY} for row in rows])
    connection.execute(insert(usage_days), rows)


def forget_days(connection: Connection, fleet: str) -> None:
    """Let go of all but a fleet's last days. They are counted, so that a clock that jumps does not empty the table."""
    mine = _COLUMNS.fleet == fleet
    days = select(_COLUMNS.day).where(mine).distinct().order_by(_COLUMNS.day.desc())
    newest_of_old = connection.scalar(days.offset(_KEPT_DAYS).limit(1))
    if newest_of_old is not None:
        connection.execute(delete(usage_days).where(mine, _COLUMNS.day <= newest_of_old))


def check_days(connection: Connection) -> None:
    """See that all rows are such rows.

    Raises:
        msgspec.ValidationError: One is not.
    """
    for row in connection.execute(select(_COLUMNS.day, _COLUMNS.tokens)):
        msgspec.convert(tuple(row), tuple[int, int])
