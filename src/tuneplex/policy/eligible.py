"""The one place for hard rules: which replicas may take a request at all.

Every dispatch passes here, whether it is a first try or any later one. Nothing else filters.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuneplex.types import Principal, Replica, ReplicaState, Route

__all__ = ["eligible"]


def eligible(
    principal: Principal,  # noqa: ARG001 - permission, region and isolation will be decided by it, here
    version: str,
    route: Route,
    replicas: Iterable[Replica],
) -> tuple[Replica, ...]:
    """The replicas that may take this request.

    Args:
        principal: Who asks.
        version: What for: `Model.version`.
        route: By which route.
        replicas: To choose from.

    Returns:
        Those that are ready, have the version loaded and offer the route, in the given order.
    """
    ready = ReplicaState.READY
    return tuple(
        [
            replica
            for replica in replicas
            if replica.state is ready and version in replica.serves and route in replica.routes
        ]
    )
