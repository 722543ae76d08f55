"""Which of the eligible replicas takes a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuneplex.types import Decision, Replica

__all__ = ["least_outstanding"]


def least_outstanding(replicas: Sequence[Replica], outstanding: Mapping[str, int]) -> Decision:
    """The replica with the fewest requests under way; among equals the first.

    Args:
        replicas: The eligible ones.
        outstanding: Requests under way by replica name; a name that is missing has none.
    """
    if not replicas:
        return Decision(None, "no replica is eligible")
    if len(replicas) == 1:
        return Decision(replicas[0], "the only one eligible")
    return Decision(min(replicas, key=lambda replica: outstanding.get(replica.name, 0)), "least outstanding")
