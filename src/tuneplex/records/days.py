"""The tokens of each day, by subject and by the gateway process that counted them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select

from tuneplex.records.tables import usage_days

__all__ = ["Counted", "Day", "read_day", "write_days"]

Day = dict[str, dict[str, int]]
"""Subject -> process -> tokens."""
Counted = tuple[str, int, str]
"""Subject, day, process."""

_KEPT_DAYS = 31


def read_day(connection: Connection, day: int) -> Day:
    """What was counted on a day."""
    columns = usage_days.c
    found: Day = {}
    rows = select(columns.subject, columns.process, columns.tokens).where(columns.day == day)
    for row in connection.execute(rows):
        # SQLite keeps a text in a column of numbers, too.
        subject, process, tokens = msgspec.convert(tuple(row), tuple[str, str, int])
        found.setdefault(subject, {})[process] = tokens
    return found


def write_days(connection: Connection, counted: Mapping[Counted, int]) -> None:
    """Put these rows in the place of those that are there, and let go of what is long over."""
    if not counted:
        return
    columns = usage_days.c
    rows = [
        {"subject": subject, "day": day, "process": process, "tokens": tokens}
        for (subject, day, process), tokens in counted.items()
    ]
    same = (
        (columns.subject == bindparam("of_subject"))
        & (columns.day == bindparam("of_day"))
        & (columns.process == bindparam("of_process"))
    )
    keys = [{f"of_{name}": row[name] for name in ("subject", "day", "process")} for row in rows]
    connection.execute(delete(usage_days).where(same), keys)
    connection.execute(insert(usage_days), rows)
    newest = max(day for _subject, day, _process in counted)
    connection.execute(delete(usage_days).where(columns.day < newest - _KEPT_DAYS))
