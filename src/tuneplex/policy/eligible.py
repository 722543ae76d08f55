"""The one place for hard rules: which replicas may take a request at all.

Every dispatch passes here, whether it is a first try or any later one. Nothing else filters.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuneplex.identity import Principal
from tuneplex.policy.permission import permits
from tuneplex.types import Model, Replica, ReplicaState, Route

__all__ = ["eligible"]


def eligible(
    principal: Principal,
    model: Model,
    route: Route,
    replicas: Iterable[Replica],
) -> tuple[Replica, ...]:
    """The replicas that may take this request.

    Args:
        principal: Who asks.
        model: What for.
        route: By which route.
        replicas: To choose from.

    Returns:
        Those that are ready, have the model's version loaded, offer the route and are for this tenant, in the given
        order; none if the principal may not call the model at all.
    """
    if not permits(principal.grant, model):
        return ()
    ready, version = ReplicaState.READY, model.version
    return tuple(
        [
            replica
            for replica in replicas
            if replica.state is ready
            and version in replica.serves
            and route in replica.routes
            and _is_for(principal, replica)
        ]
    )


def _is_for(principal: Principal, replica: Replica) -> bool:
    """A reserved replica is for its tenants, a shared one for all who need no isolation."""
    return principal.tenant in replica.tenants if replica.tenants else not principal.isolated
