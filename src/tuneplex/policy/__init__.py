"""Decisions without effects: what may take a request, and which replica does."""

from tuneplex.policy.changes import changes
from tuneplex.policy.eligible import eligible, expected, too_small
from tuneplex.policy.fair import FairQueue, Place
from tuneplex.policy.leases import Want, ceiling, floor, shares
from tuneplex.policy.lessor import Lessor
from tuneplex.policy.permission import permits
from tuneplex.policy.routing import least_outstanding
from tuneplex.policy.slots import QUANTUM_S, Slots
from tuneplex.policy.turns import local_weights, places, turns
from tuneplex.policy.windows import MINUTE_S, Cell, Window

__all__ = [
    "MINUTE_S",
    "QUANTUM_S",
    "Cell",
    "FairQueue",
    "Lessor",
    "Place",
    "Slots",
    "Want",
    "Window",
    "ceiling",
    "changes",
    "eligible",
    "expected",
    "floor",
    "least_outstanding",
    "local_weights",
    "permits",
    "places",
    "shares",
    "too_small",
    "turns",
]
