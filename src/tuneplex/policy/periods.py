"""Days and months of UTC, by which some limits count, and what was counted in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["BUDGETS", "DAY_S", "Periods", "day_of", "month_of", "periods_at", "rest_s"]

DAY_S = 86400
# The limits (see `identity.Limits`) that are for a period of the calendar, and not for the last minute.
BUDGETS = ("tokens_per_day", "money_per_month")

_MONTHS = 12
_EPOCH_YEAR = 1970
_EPOCH = datetime(_EPOCH_YEAR, 1, 1, tzinfo=UTC)
_KEPT = 3


def day_of(wall: float) -> int:
    """The day of a Unix time: days of UTC since 1970."""
    return int(wall // DAY_S)


def month_of(wall: float) -> int:
    """The month of a Unix time: months of UTC since the beginning of 1970."""
    date = _EPOCH + timedelta(days=day_of(wall))
    return (date.year - _EPOCH_YEAR) * _MONTHS + date.month - 1


def periods_at(wall: float) -> dict[str, int]:
    """The period of each of `BUDGETS` that a Unix time is in."""
    return {"tokens_per_day": day_of(wall), "money_per_month": month_of(wall)}


def rest_s(kind: str, wall: float) -> float:
    """Seconds until the next period of one of `BUDGETS` begins."""
    if kind == "tokens_per_day":
        return DAY_S - wall % DAY_S
    year, month = divmod(month_of(wall) + 1, _MONTHS)
    return datetime(_EPOCH_YEAR + year, month + 1, 1, tzinfo=UTC).timestamp() - wall


class Periods:
    """Amounts by period. Those that were current last are kept, lest a clock that jumps gives one away twice."""

    __slots__ = ("_amount", "_others", "_period")

    def __init__(self) -> None:
        self._period = 0  # the one that was counted in last
        self._amount = 0
        self._others: dict[int, int] = {}

    def of(self, period: int) -> int:
        """What was counted in a period."""
        return self._amount if period == self._period else self._others.get(period, 0)

    def near(self, period: int) -> bool:
        """Whether anything was counted in a period, or in one so near that a clock that was set comes back to it."""
        counted = {**self._others, self._period: self._amount}
        return any(amount and abs(other - period) <= _KEPT for other, amount in counted.items())

    def add(self, period: int, amount: int) -> None:
        """Count more, or less; never less than nothing."""
        if period != self._period:
            others = self._others
            others[self._period] = self._amount  # the last one in order
            self._period, self._amount = period, others.pop(period, 0)
            if len(others) >= _KEPT:
                del others[next(iter(others))]
        total = self._amount + amount
        self._amount = max(0, total)
