"""What engines count themselves, kept to be compared with what the gateways have counted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, insert, select, update

from tuneplex.records.tables import engine_counters

__all__ = ["EngineCounters", "keep_counters", "read_counters"]

_CHANGES = ("at", "prompt", "completion")


class EngineCounters(msgspec.Struct, frozen=True):
    """What one start of an engine says that it has done.

    Attributes:
        engine: Which start of which replica.
        replica: The replica.
        pool: Its pool.
        since: When it was asked first, Unix time in milliseconds.
        at: When it was asked last.
        first_prompt: Tokens that it had read when it was asked first.
        first_completion: Tokens that it had written then.
        prompt: Tokens that it has read by now.
        completion: Tokens that it has written by now.
    """

    engine: str
    replica: str
    pool: str
    since: int
    at: int
    first_prompt: int
    first_completion: int
    prompt: int
    completion: int


def keep_counters(connection: Connection, fleet: str, counters: Sequence[EngineCounters]) -> None:
    """Keep what engines say now; what they said first stays."""
    for one in counters:
        row = msgspec.structs.asdict(one)
        same = engine_counters.c.fleet == fleet, engine_counters.c.engine == one.engine
        now = {name: row[name] for name in _CHANGES}
        if not connection.execute(update(engine_counters).where(*same).values(now)).rowcount:
            connection.execute(insert(engine_counters), {"fleet": fleet, **row})


def read_counters(connection: Connection, fleet: str) -> list[EngineCounters]:
    """What a fleet's engines have said, oldest first."""
    columns = [engine_counters.c[name] for name in EngineCounters.__struct_fields__]
    mine = select(*columns).where(engine_counters.c.fleet == fleet).order_by(engine_counters.c.since)
    return [EngineCounters(*row) for row in connection.execute(mine)]
