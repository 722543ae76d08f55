"""The admin API's operations on usage: what was used, and what engines say that they have counted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tuneplex.control.controller import Controller
from tuneplex.control.operations import Call, Operation, Query
from tuneplex.control.registry import Records
from tuneplex.control.usage_bodies import (
    FILTERS,
    GROUPED_BY,
    EngineUse,
    UsageReport,
    usage_question,
    usage_report,
)

__all__ = ["Asks", "usage_operations"]

T = TypeVar("T")
_ERRORS = (400, 503)


class Asks(Protocol):
    """Asks the store."""

    def read(self, work: Callable[[Records], T]) -> Awaitable[T]:
        """What `work` finds there; raises `StoreError`."""
        ...


def usage_operations(controller: Controller, asks: Asks) -> tuple[Operation, ...]:
    """All operations on usage.

    Args:
        controller: What the engines have said last.
        asks: The store.
    """

    async def usage(call: Call) -> UsageReport:
        question, fleet = usage_question(call.query, time.time()), controller.spec.name
        by, days, only = question.store_groups, (question.since, question.until), question.store_only
        found = await asks.read(lambda store: store.usage(fleet, by=by, since=days[0], until=days[1], only=only))
        return usage_report(question, found)

    async def engines(_call: Call) -> tuple[EngineUse, ...]:
        fleet = controller.spec.name
        kept = await asks.read(lambda store: store.counters(fleet))
        firsts = {one.engine: EngineUse.of(one) for one in kept}
        now = {one.engine: EngineUse.of(one) for one in controller.counted()}
        return tuple(sorted((firsts | now).values(), key=lambda one: (one.since, one.engine)))

    queries = (
        Query("by", f"What to tell apart, with commas between: {', '.join(GROUPED_BY)}. `tenant` if it is not given; "
              "nothing if it is empty."),
        Query("since", "The first day, of UTC, as 2026-12-01; without it, thirty days up to the last one."),
        Query("until", "The last day, included; without it, today."),
        *(Query(name, f"Only requests of this {name}.") for name in FILTERS),
    )  # fmt: skip
    return (
        Operation("GET", "/usage", "getUsage", "Requests that are over, and their tokens, by who and what.", usage,
                  answer=UsageReport, errors=_ERRORS, query=queries),
        Operation("GET", "/usage/engines", "listEngineUse", "What each start of each engine says that it has read and "
                  "written.", engines, answer=tuple[EngineUse, ...], errors=_ERRORS),
    )  # fmt: skip
