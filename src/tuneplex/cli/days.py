"""Days and moments of UTC as people give them to a command: a date, or how long ago."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from tuneplex.errors import UserError
from tuneplex.policy import DAY_S
from tuneplex.units import parse_duration

__all__ = ["first_day", "last_day", "moment_of"]

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?")
_HINT = "for instance 2026-12-01, 2026-12-01T08:30 or 7d"


def first_day(text: str, option: str, now: float) -> int:
    """The first day that is meant, since 1970: `2026-12-01`; or `7d`, which are today and the six days before it.

    Raises:
        UserError: It is neither.
    """
    if _DATE.fullmatch(text):
        return _day(moment_of(text, option, now))
    return max(0, _day(now) + 1 - max(1, math.ceil(_ago(text, option) / DAY_S)))


def last_day(text: str, option: str, now: float) -> int:
    """The last day that is meant, since 1970: `2026-12-01`; or `2d`, which is the day before yesterday.

    Raises:
        UserError: It is neither.
    """
    return max(0, _day(moment_of(text, option, now)))


def moment_of(text: str, option: str, now: float, *, end: bool = False) -> float:
    """A moment as Unix time: `2026-12-01`, `2026-12-01T08:30` or `2h`, which is two hours ago.

    Args:
        text: What was given; a time without a zone is of UTC.
        option: Where.
        now: Unix time.
        end: A date means the end of its day, and not the beginning.

    Raises:
        UserError: It is none of these.
    """
    match = _DATE.fullmatch(text)
    if match is None:
        return max(0.0, now - _ago(text, option))
    try:
        found = datetime.fromisoformat(text)
        moment = found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise UserError(f"{option}: {text!r} is not a date of UTC", hint=_HINT) from None
    return max(0.0, moment + (DAY_S if end and match[1] is None else 0))


def _ago(text: str, option: str) -> float:
    """How long ago, in seconds.

    Raises:
        UserError: It is no duration.
    """
    try:
        return parse_duration(text)
    except ValueError:
        raise UserError(f"{option}: {text!r} is neither a date nor a duration", hint=_HINT) from None


def _day(moment: float) -> int:
    return int(moment // DAY_S)
