"""Decisions without effects: what may take a request, and which replica does."""

from tuneplex.policy.changes import changes
from tuneplex.policy.eligible import eligible
from tuneplex.policy.leases import Want, ceiling, floor, shares
from tuneplex.policy.lessor import Lessor
from tuneplex.policy.periods import BUDGETS, DAY_S, Periods, day_of, month_of, periods_at, rest_s
from tuneplex.policy.permission import permits
from tuneplex.policy.routing import least_outstanding
from tuneplex.policy.windows import MINUTE_S, Cell, Window

__all__ = [
    "BUDGETS",
    "DAY_S",
    "MINUTE_S",
    "Cell",
    "Lessor",
    "Periods",
    "Want",
    "Window",
    "ceiling",
    "changes",
    "day_of",
    "eligible",
    "floor",
    "least_outstanding",
    "month_of",
    "periods_at",
    "permits",
    "rest_s",
    "shares",
]
