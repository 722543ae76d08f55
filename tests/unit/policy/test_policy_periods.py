"""Days and months of UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy import BUDGETS, Periods, month_of, periods_at, rest_s

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9998, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))  # noqa: DTZ001 - hypothesis wants them so


@given(MOMENTS)
def test_a_month_is_that_of_the_calendar(moment: datetime) -> None:
    """Months are numbered from January 1970 on, by UTC."""
    assert month_of(moment.timestamp()) == (moment.year - 1970) * 12 + moment.month - 1


@given(MOMENTS, st.sampled_from(BUDGETS))
def test_the_next_period_begins_when_this_one_is_over(moment: datetime, kind: str) -> None:
    """What was told to be left of a period is left of it, to the second, and not more."""
    wall = float(int(moment.timestamp()))
    rest = rest_s(kind, wall)
    assert periods_at(wall + rest - 1)[kind] == periods_at(wall)[kind]
    assert periods_at(wall + rest)[kind] == periods_at(wall)[kind] + 1


@pytest.mark.parametrize(
    "moment, days", [(datetime(2024, 2, 1, tzinfo=UTC), 29), (datetime(2025, 12, 1, tzinfo=UTC), 31)]
)
def test_months_have_their_own_lengths(moment: datetime, days: int) -> None:
    """February in a leap year, and December, which a year follows."""
    assert rest_s("money_per_month", moment.timestamp()) == days * 86400


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-(10**15), 10**15))))
def test_amounts_are_exact_and_never_below_nothing(steps: list[tuple[int, int]]) -> None:
    """Up to three periods are counted apart, to the last pico."""
    counted, expected = Periods(), {0: 0, 1: 0, 2: 0}
    for period, amount in steps:
        counted.add(period, amount)
        expected[period] = max(0, expected[period] + amount)
    assert {period: counted.of(period) for period in expected} == expected


def test_only_the_last_periods_are_kept() -> None:
    """What is long over is let go of, the oldest first."""
    counted = Periods()
    for period in (5, 9, 7, 8):
        counted.add(period, 1)
    assert [counted.of(period) for period in (5, 7, 8, 9)] == [0, 1, 1, 1]


def test_amounts_near_a_period_are_known() -> None:
    """What was counted is near for three periods before and after, and what came to nothing is not."""
    periods = Periods()
    assert not periods.near(0)
    periods.add(100, 5)
    assert [offset for offset in range(-6, 7) if periods.near(100 + offset)] == [-3, -2, -1, 0, 1, 2, 3]
    periods.add(100, -5)
    assert not periods.near(100)
