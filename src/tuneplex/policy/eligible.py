"""The one place for hard rules: which replicas may take a request at all.

Every dispatch passes here, whether it is a first try or any later one. Nothing else filters.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuneplex.identity import Principal
from tuneplex.policy.permission import permits
from tuneplex.types import Model, Replica, ReplicaState, Route

__all__ = ["eligible", "expected", "too_small"]


def eligible(
    principal: Principal,
    model: Model,
    route: Route,
    replicas: Iterable[Replica],
    *,
    least: int = 0,
    whole: int = 0,
) -> tuple[Replica, ...]:
    """The replicas that may take this request.

    Args:
        principal: Who asks.
        model: What for.
        route: By which route.
        replicas: To choose from.
        least: Tokens that the request has at least; no engine answers it with a smaller context. 0: nobody counted.
        whole: Tokens that it has with the longest answer that it asks for. Where only some have so much context, it is
            for them: the others would cut the answer short.

    Returns:
        Those that are ready, have the model's version loaded, offer the route, are for this tenant and have the
        context, in the given order; none if the principal may not call the model at all.
    """
    if not permits(principal.grant, model):
        return ()
    ready, version = ReplicaState.READY, model.version
    found = [
        replica
        for replica in replicas
        if replica.state is ready
        and version in replica.serves
        and route in replica.routes
        and _is_for(principal, replica)
    ]
    return tuple(_with_room(found, least, whole) if least or whole else found)


def expected(
    principal: Principal, model: Model, route: Route, replicas: Iterable[Replica], *, least: int = 0
) -> tuple[Replica, ...]:
    """The replicas that are expected to be eligible soon: they start, or load the model. The arguments are the same."""
    if not permits(principal.grant, model):
        return ()
    found = [
        replica
        for replica in replicas
        if model.version in replica.awaited and route in replica.routes and _is_for(principal, replica)
    ]
    return tuple(_with_room(found, least, 0) if least else found)


def too_small(principal: Principal, model: Model, route: Route, replicas: Iterable[Replica], least: int) -> int | None:
    """The largest context there is for this request, if that is too small for so many tokens; None if it may fit.

    Replicas that only await the model count, too, and one whose context nobody knows has any.
    """
    contexts = [
        replica.context
        for replica in replicas
        if (model.version in replica.serves or model.version in replica.awaited)
        and route in replica.routes
        and _is_for(principal, replica)
    ]
    known = [context for context in contexts if context is not None]
    if not known or len(known) < len(contexts):
        return None
    largest = max(known)
    return largest if largest < least else None


def _with_room(replicas: list[Replica], least: int, whole: int) -> list[Replica]:
    """Those that can hold the request at all; of them those that can hold its whole answer, if there are any."""
    possible = [replica for replica in replicas if replica.context is None or replica.context >= least]
    return [replica for replica in possible if replica.context is None or replica.context >= whole] or possible


def _is_for(principal: Principal, replica: Replica) -> bool:
    """A reserved replica is for its tenants, a shared one for all who need no isolation."""
    return principal.tenant in replica.tenants if replica.tenants else not principal.isolated
