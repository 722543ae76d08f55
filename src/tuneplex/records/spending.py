"""What was let in of limits by the day and the month, by fleet, subject, period and the process that counted it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select

from tuneplex.records.tables import spending

__all__ = ["Counted", "Spending", "check_spending", "forget_spending", "read_spending", "write_spending"]

Spending = dict[str, dict[str, int]]
"""Subject -> process -> amount."""
Counted = tuple[str, int, str, str]
"""Field of `Limits`, period, subject, process."""

_KEPT_PERIODS = 31
_COLUMNS = spending.c
_KEY = ("kind", "period", "subject", "process")


def read_spending(connection: Connection, fleet: str, kind: str, period: int) -> Spending:
    """What a fleet has counted of one kind of limit in a period."""
    found: Spending = {}
    rows = select(_COLUMNS.subject, _COLUMNS.process, _COLUMNS.amount)
    those = _COLUMNS.fleet == fleet, _COLUMNS.kind == kind, _COLUMNS.period == period
    for row in connection.execute(rows.where(*those)):
        # SQLite keeps a text in a column of numbers, too.
        subject, process, amount = msgspec.convert(tuple(row), tuple[str, str, int])
        found.setdefault(subject, {})[process] = amount
    return found


def write_spending(connection: Connection, fleet: str, counted: Mapping[Counted, int]) -> None:
    """Put these rows in the place of those that are there."""
    if not counted:
        return
    rows = [{"fleet": fleet, **dict(zip(_KEY, key, strict=True)), "amount": amount} for key, amount in counted.items()]
    whole_key = ("fleet", *_KEY)
    same = delete(spending).where(*(_COLUMNS[name] == bindparam(f"of_{name}") for name in whole_key))
    connection.execute(same, [{f"of_{name}": row[name] for name in whole_key} for row in rows])
    connection.execute(insert(spending), rows)


def forget_spending(connection: Connection, fleet: str) -> None:
    """Let go of all but a fleet's last periods of each kind.

    They are counted, so that a clock that jumps does not empty the table.
    """
    for kind in connection.scalars(select(_COLUMNS.kind).where(_COLUMNS.fleet == fleet).distinct()).all():
        mine = _COLUMNS.fleet == fleet, _COLUMNS.kind == kind
        periods = select(_COLUMNS.period).where(*mine).distinct().order_by(_COLUMNS.period.desc())
        newest_of_old = connection.scalar(periods.offset(_KEPT_PERIODS).limit(1))
        if newest_of_old is not None:
            connection.execute(delete(spending).where(*mine, _COLUMNS.period <= newest_of_old))


def check_spending(connection: Connection) -> None:
    """See that all rows are such rows.

    Raises:
        msgspec.ValidationError: One is not.
    """
    for row in connection.execute(select(_COLUMNS.period, _COLUMNS.amount)):
        msgspec.convert(tuple(row), tuple[int, int])
