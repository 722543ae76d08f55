"""What the admin API tells of usage and of engines' counters, and how it is asked: values and pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from tuneplex.errors import BadRequest
from tuneplex.policy import DAY_S

if TYPE_CHECKING:
    from tuneplex.records import EngineCounters, Usage

__all__ = [
    "FILTERS",
    "GROUPED_BY",
    "EngineUse",
    "UsageQuestion",
    "UsageReport",
    "UsageRow",
    "day_number",
    "day_text",
    "usage_question",
    "usage_report",
]

# As people say them, and as the store calls them.
GROUPED_BY = {
    "day": "day",
    "tenant": "tenant",
    "key": "key_id",
    "model": "model",
    "version": "version",
    "pool": "pool",
    "outcome": "outcome",
}
FILTERS = tuple(name for name in GROUPED_BY if name != "day")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS = 30


class UsageQuestion(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        by: What to tell apart, of `GROUPED_BY`.
        since: The first day, of UTC since 1970.
        until: The last day, included.
        only: What requests must have, by the names in `FILTERS`.
    """

    by: tuple[str, ...]
    since: int
    until: int
    only: dict[str, str] = {}

    @property
    def store_groups(self) -> list[str]:
        """What to tell apart, as the store calls it."""
        return [GROUPED_BY[name] for name in self.by]

    @property
    def store_only(self) -> dict[str, str]:
        """What requests must have, as the store calls it."""
        return {GROUPED_BY[name]: value for name, value in self.only.items()}


class UsageRow(msgspec.Struct, frozen=True):
    """Requests that are over, added up.

    Attributes:
        group: What they have in common, by what was told apart; days as `2026-12-01`, of UTC.
        requests: How many.
        prompt_tokens: Of their prompts.
        cached_prompt_tokens: Those of them that engines had in their prefix caches, where they tell.
        completion_tokens: Of the replies.
        estimated_requests: How many of the requests have tokens that no engine has told.
        estimated_prompt_tokens: Of the prompts' tokens, those of these requests.
        estimated_completion_tokens: Of the replies' tokens, those of these requests.
    """

    group: dict[str, str]
    requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_requests: int = 0
    estimated_prompt_tokens: int = 0
    estimated_completion_tokens: int = 0


class UsageReport(msgspec.Struct, frozen=True):
    """What a fleet has used.

    Attributes:
        since: The first day, of UTC.
        until: The last day, included.
        by: What is told apart.
        rows: One for each group, in order.
        total: All of them together.
    """

    since: str
    until: str
    by: tuple[str, ...]
    rows: tuple[UsageRow, ...]
    total: UsageRow


class EngineUse(msgspec.Struct, frozen=True):
    """What one start of an engine says that it has read and written, in tokens.

    Attributes:
        engine: Which start of which replica.
        replica: The replica.
        pool: Its pool.
        since: When it was seen first, Unix time in seconds; of one that was started here, its start.
        at: When it was asked last.
        first_prompt_tokens: What it had read when it was seen first.
        first_completion_tokens: What it had written then.
        prompt_tokens: What it has read by now.
        completion_tokens: What it has written by now.
    """

    engine: str
    replica: str
    pool: str
    since: float
    at: float
    first_prompt_tokens: int
    first_completion_tokens: int
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, one: EngineCounters) -> EngineUse:
        """What the store keeps, or control has just heard."""
        first = one.first_prompt, one.first_completion
        return cls(
            one.engine, one.replica, one.pool, one.since / 1000, one.at / 1000, *first, one.prompt, one.completion
        )


def day_number(text: str) -> int:
    """A date as days since 1970.

    Raises:
        ValueError: It is none, or of before.
    """
    found = (datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH).days
    if found < 0:
        raise ValueError(text)
    return found


def day_text(day: int) -> str:
    """A day as a date: `2026-12-01`."""
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")


def usage_question(query: Mapping[str, str], now: float) -> UsageQuestion:
    """What the parameters of a URL ask for.

    Args:
        query: `by`, `since`, `until` and `FILTERS`; without `by` tenants are told apart, without days it is the last
            thirty.
        now: Unix time.

    Raises:
        BadRequest: One of them is nothing.
    """
    until = _day(query, "until", int(now // DAY_S))
    since = _day(query, "since", max(0, until - _DAYS + 1))
    by = tuple(name for name in query.get("by", "tenant").split(",") if name)
    wrong = [name for name in by if name not in GROUPED_BY or by.count(name) > 1]
    if wrong:
        raise BadRequest(f"{wrong[0]!r} is not one of {', '.join(GROUPED_BY)}, once each", param="by")
    if since > until:
        raise BadRequest(f"`since` ({day_text(since)}) is behind `until` ({day_text(until)})", param="since")
    return UsageQuestion(by, since, until, {name: query[name] for name in FILTERS if name in query})


def _day(query: Mapping[str, str], name: str, default: int) -> int:
    try:
        return day_number(query[name]) if query.get(name) else default
    except ValueError:
        raise BadRequest(f"`{name}` is a day of UTC as 2026-12-01, not {query[name]!r}", param=name) from None


def usage_report(question: UsageQuestion, found: Sequence[Usage]) -> UsageReport:
    """The answer, from what the store has found."""
    rows = tuple(_row(question.by, one) for one in found)
    return UsageReport(day_text(question.since), day_text(question.until), question.by, rows, _total(rows))


def _row(by: Sequence[str], one: Usage) -> UsageRow:
    values = {name: one.group[GROUPED_BY[name]] for name in by}
    group = {name: day_text(value) if isinstance(value, int) else value for name, value in values.items()}
    return UsageRow(group, *msgspec.structs.astuple(one)[1:])


def _total(rows: Iterable[UsageRow]) -> UsageRow:
    columns = zip(*(msgspec.structs.astuple(row)[1:] for row in rows), strict=True)
    return UsageRow({}, *map(sum, columns))
