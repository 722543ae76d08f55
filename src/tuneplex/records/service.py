"""How well requests were served: how many were and how many should have been, and the time to their first tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from tuneplex.records.requests import DAY_S
from tuneplex.records.tables import requests

__all__ = ["BAD", "GOOD", "SERVED_BY", "FirstTokens", "Served", "read_first_tokens", "read_served"]

SERVED_BY = ("model", "tenant")
GOOD = ("complete", "cut")
BAD = ("engine_error", "unreachable", "broken", "timeout", "stopped", "gateway_crashed")
_LEFT, _REJECTED, _DEADLINE = "client_gone", "rejected", "deadline_exceeded"
_OURS = 500  # from this status on a refusal is ours
_NEVER = 2**60


class Served(msgspec.Struct, frozen=True):
    """Requests of a group: those that were served, and those that should have been."""

    group: tuple[str, ...]
    good: int
    bad: int


class FirstTokens(msgspec.Struct, frozen=True):
    """How long streams of a group took to their first event, seconds: half of them at most `p50_s`."""

    p50_s: float
    p95_s: float


def read_served(
    connection: Connection, fleet: str, since: float, *, by: Sequence[str], late_s: Mapping[str, float], usual_s: float
) -> list[Served]:
    """How the requests of a fleet were served that were over at some time or later.

    Args:
        connection: To the database.
        fleet: The fleet's name.
        since: That time, Unix time.
        by: Of `SERVED_BY`.
        late_s: By model: from when on a stream without a first event is late, so that who leaves it has reason to.
        usual_s: The same of all other models; infinite for never.
    """
    keys = [requests.c[name] for name in by]
    kinds = (requests.c.outcome.in_(GOOD), _bad(late_s, usual_s))
    good, bad = (func.coalesce(func.sum(case((kind, requests.c.count), else_=0)), 0) for kind in kinds)
    rows = connection.execute(select(*keys, good, bad).where(*_since(fleet, since)).group_by(*keys).order_by(*keys))
    return [Served(tuple(map(str, row[:-2])), int(row[-2]), int(row[-1])) for row in rows]


def _bad(late_s: Mapping[str, float], usual_s: float) -> ColumnElement[bool]:
    columns = requests.c
    whole = _milliseconds(usual_s)
    bounds = {model: _milliseconds(seconds) for model, seconds in late_s.items()}
    late = case(bounds, value=columns.model, else_=whole) if bounds else whole
    silent = columns.stream & columns.first_token_ms.is_(None)
    return or_(
        columns.outcome.in_(BAD),
        and_(columns.outcome == _REJECTED, columns.status >= _OURS, columns.code != _DEADLINE),
        and_(columns.outcome == _LEFT, silent, columns.closed - columns.arrived > late),
    )


def _milliseconds(seconds: float) -> int:
    return int(min(seconds * 1000, _NEVER))


def read_first_tokens(
    connection: Connection, fleet: str, since: float, *, by: Sequence[str]
) -> dict[tuple[str, ...], FirstTokens]:
    """The median and the 95th percentile of the time to the first event; see `read_served`."""
    keys = [requests.c[name] for name in by]
    took = requests.c.first_token_ms
    place = func.row_number().over(partition_by=keys, order_by=took).label("place")
    count = func.count().over(partition_by=keys).label("streams")
    streams = select(*keys, took.label("took"), place, count).where(*_since(fleet, since), took.is_not(None)).subquery()
    shown = [streams.c[name] for name in by]
    found = [func.max(case((streams.c.place == _rank(streams.c.streams, part), streams.c.took))) for part in (50, 95)]
    rows = connection.execute(select(*shown, *found).group_by(*shown))
    return {tuple(map(str, row[:-2])): FirstTokens(row[-2] / 1000, row[-1] / 1000) for row in rows}


def _rank(count: ColumnElement[int], percent: int) -> ColumnElement[int]:
    """The place of the first one that so many percent of all are not above."""
    return (count * percent + 99) // 100


def _since(fleet: str, since: float) -> tuple[ColumnElement[bool], ...]:
    columns = requests.c
    return columns.fleet == fleet, columns.day >= int(since // DAY_S), columns.closed >= int(since * 1000)
