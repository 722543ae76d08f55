"""Decisions without effects: what may take a request, and which replica does."""

from tuneplex.policy.changes import changes
from tuneplex.policy.eligible import eligible
from tuneplex.policy.leases import Want, ceiling, floor, shares
from tuneplex.policy.lessor import Lessor
from tuneplex.policy.permission import permits
from tuneplex.policy.routing import least_outstanding
from tuneplex.policy.windows import MINUTE_S, Cell, Window

__all__ = [
    "MINUTE_S",
    "Cell",
    "Lessor",
    "Want",
    "Window",
    "ceiling",
    "changes",
    "eligible",
    "floor",
    "least_outstanding",
    "permits",
    "shares",
]
