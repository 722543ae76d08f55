"""Decisions without effects: what may take a request, and which replica does."""

from tuneplex.policy.breaking import Breaker, Word
from tuneplex.policy.changes import changes
from tuneplex.policy.eligible import eligible, expected, too_small
from tuneplex.policy.fair import FairQueue, Place
from tuneplex.policy.leases import Want, ceiling, floor, shares
from tuneplex.policy.lessor import Lessor
from tuneplex.policy.objectives import NOTHING, Service, availability, burnt, together
from tuneplex.policy.periods import BUDGETS, DAY_S, Periods, day_of, month_of, periods_at, rest_s
from tuneplex.policy.permission import permits
from tuneplex.policy.retrying import DEATHS, Budget, End, Verdict, backoff_s, read_retry_after, verdict
from tuneplex.policy.routing import least_outstanding
from tuneplex.policy.share import takes_new
from tuneplex.policy.slots import QUANTUM_S, Slots
from tuneplex.policy.turns import local_weights, places, turns
from tuneplex.policy.windows import MINUTE_S, Cell, Window

__all__ = [
    "BUDGETS",
    "DAY_S",
    "DEATHS",
    "MINUTE_S",
    "NOTHING",
    "QUANTUM_S",
    "Breaker",
    "Budget",
    "Cell",
    "End",
    "FairQueue",
    "Lessor",
    "Periods",
    "Place",
    "Service",
    "Slots",
    "Verdict",
    "Want",
    "Window",
    "Word",
    "availability",
    "backoff_s",
    "burnt",
    "ceiling",
    "changes",
    "day_of",
    "eligible",
    "expected",
    "floor",
    "least_outstanding",
    "local_weights",
    "month_of",
    "periods_at",
    "permits",
    "places",
    "read_retry_after",
    "rest_s",
    "shares",
    "takes_new",
    "together",
    "too_small",
    "turns",
    "verdict",
]
