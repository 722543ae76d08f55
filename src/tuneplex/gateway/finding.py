"""Where a request can go: the replicas that may take it now, or will, or the error that says why there are none."""

from __future__ import annotations

from collections.abc import Sequence

from tuneplex.errors import NotFound, Unavailable
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.estimate import does_not_fit
from tuneplex.policy import eligible, expected, too_small
from tuneplex.types import Replica

__all__ = ["Found", "coming", "find"]

Found = tuple[tuple[Replica, ...], tuple[Replica, ...]]
"""The replicas that may take a request now; where there are none, those that will."""


def find(asked: Asked, replicas: Sequence[Replica]) -> Found:
    """Those of these replicas that are for this request.

    Raises:
        BadRequest: It does not fit the context of any.
        NotFound: They do not offer its route.
        Unavailable: There is none, and none is expected.
    """
    principal, model, route, needed = asked.principal, asked.model, asked.route, asked.needed
    least, whole = (0, 0) if needed is None else (needed.at_least, needed.whole)
    ready = eligible(principal, model, route, replicas, least=least, whole=whole)
    if ready:
        return ready, ()
    later = coming(asked, replicas)
    if later:
        return (), later
    largest = too_small(principal, model, route, replicas, least)
    if largest is not None and needed is not None:
        raise does_not_fit(needed, largest)
    if any(model.version in known.serves and route not in known.routes for known in replicas):
        raise NotFound(f"The model `{asked.shown}` does not offer {route.value}.", code="route_not_offered")
    raise Unavailable(f"No engine is ready for the model `{asked.shown}`.", code="no_ready_engine", retry_after_s=2)


def coming(asked: Asked, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """Those that will be able to take it, whether there are others or not."""
    least = 0 if asked.needed is None else asked.needed.at_least
    return expected(asked.principal, asked.model, asked.route, replicas, least=least)
