"""Usage: requests and tokens by who and what, from requests that are kept and from days that were added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection, case, func, select, union_all
from sqlalchemy.sql.selectable import Subquery

from tuneplex.records.tables import requests, usage_days

__all__ = ["GROUPS", "Usage", "last_added_up", "read_usage"]

GROUPS = ("day", "tenant", "key_id", "model", "version", "pool", "outcome")
_SUMS = ("requests", "prompt", "cached", "completion")
_GUESSED = ("guessed", "guessed_prompt", "guessed_completion")


class Usage(msgspec.Struct, frozen=True):
    """Requests that were added up.

    Attributes:
        group: What they have in common, by the names in `GROUPS`.
        requests: How many.
        prompt: Tokens of their prompts.
        cached: Those of them that the engines had already.
        completion: Tokens of the replies.
        estimated: How many of the requests have tokens that are not by an engine's word.
        estimated_prompt: Of the prompts' tokens, those of these requests.
        estimated_completion: Of the replies' tokens, those of these requests.
    """

    group: dict[str, str | int]
    requests: int
    prompt: int
    cached: int
    completion: int
    estimated: int
    estimated_prompt: int = 0
    estimated_completion: int = 0


def read_usage(
    connection: Connection, fleet: str, *, by: Sequence[str], since: int, until: int, only: Mapping[str, str]
) -> list[Usage]:
    """What a fleet has used.

    Args:
        connection: To the database.
        fleet: The fleet's name.
        by: Of `GROUPS`; everything together if there are none.
        since: The first day, of UTC since 1970.
        until: The last day, included.
        only: Values that they must have, by the names in `GROUPS`.
    """
    both = _both(fleet, since, until, only)
    keys = [both.c[name] for name in by]
    sums = [func.coalesce(func.sum(both.c[name]), 0) for name in (*_SUMS, *_GUESSED)]
    rows = connection.execute(select(*keys, *sums).group_by(*keys).order_by(*keys))
    return [_usage(by, tuple(row)) for row in rows]


def last_added_up(connection: Connection, fleet: str) -> int | None:
    """The last day, of UTC since 1970, of which requests are only kept added up; None if there is none."""
    found: int | None = connection.scalar(select(func.max(usage_days.c.day)).where(usage_days.c.fleet == fleet))
    return found


def _usage(by: Sequence[str], row: tuple[str | int, ...]) -> Usage:
    return Usage(dict(zip(by, row, strict=False)), *map(int, row[len(by) :]))


def _both(fleet: str, since: int, until: int, only: Mapping[str, str]) -> Subquery:
    """The rows of both tables, with the same columns."""
    parts = []
    for table, count in ((requests, requests.c.count), (usage_days, usage_days.c.requests)):
        groups = [table.c[name] for name in GROUPS]
        counts = (count, table.c.prompt, table.c.completion)
        guessed = [
            case((table.c.estimated, number), else_=0).label(name)
            for name, number in zip(_GUESSED, counts, strict=True)
        ]
        numbers = [count.label("requests"), table.c.prompt, table.c.cached, table.c.completion, *guessed]
        wanted = [table.c[name] == value for name, value in only.items()]
        days = table.c.day >= since, table.c.day <= until
        parts.append(select(*groups, *numbers).where(table.c.fleet == fleet, *days, *wanted))
    return union_all(*parts).subquery()
