"""Times as people give them to a command, and as they read them in its answers."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

from tuneplex.errors import UserError
from tuneplex.units import parse_duration

__all__ = ["distance", "instant", "moment", "positive", "seconds"]

_STEPS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def seconds(text: str, option: str) -> float:
    """A duration from the command line.

    Raises:
        UserError: It is none.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}; for long times use days: 90d") from None


def positive(text: str, option: str) -> float:
    """A duration of more than nothing from the command line.

    Raises:
        UserError: It is none.
    """
    found = seconds(text, option)
    if not found:
        raise UserError(f"{option}: should be more than 0")
    return found


def distance(then: float, now: float) -> str:
    """How far a moment is away: `in 89 days`, `in 3 hours`, `2 minutes ago`, `now`."""
    words = _count(abs(then - now))
    if not words:
        return "now" if then > now else "just now"
    return f"in {words}" if then > now else f"{words} ago"


def _count(seconds_away: float) -> str:
    """The largest unit that fits, rounded to the nearest; up to two days are told in hours, so that little is lost."""
    for step, unit in _STEPS:
        least = 2 * step if step > _STEPS[-1][0] else step
        count = round(seconds_away / step)
        if count * step >= least:
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return ""


def moment(when: float, *, exact: bool = False) -> str:
    """A moment in this machine's time zone: `2026-11-30 20:15 UTC`, or `20:15:08` if it shall be exact."""
    return time.strftime(f"%Y-%m-%d %H:%M{':%S' if exact else ''} %Z", time.localtime(when))


def instant(text: str, option: str, *, end: bool = False) -> float:
    """A date or a time from the command line, as Unix time; without a zone it is UTC.

    Args:
        text: `2026-12-01` or `2026-12-01T08:30`.
        option: Where it was given.
        end: Whether a date means the end of its day, and not the beginning.

    Raises:
        UserError: It is none.
    """
    try:
        found = _day(text.strip(), end=end) or datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        hint = "for instance 2026-12-01 or 2026-12-01T08:30, in UTC"
        raise UserError(f"{option}: {text!r} is not a date or a time", hint=hint) from None


def _day(text: str, *, end: bool) -> datetime | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1 if end else 0)
