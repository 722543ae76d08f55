"""Decisions without effects: what may take a request, and which replica does."""

from tuneplex.policy.changes import changes
from tuneplex.policy.eligible import eligible
from tuneplex.policy.permission import permits
from tuneplex.policy.routing import least_outstanding

__all__ = ["changes", "eligible", "least_outstanding", "permits"]
