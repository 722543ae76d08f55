"""Hard rules and the choice among replicas."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.identity import Principal
from tuneplex.policy import eligible, least_outstanding
from tuneplex.types import Model, Replica, ReplicaState, Route

ANYBODY = Principal("default", "default")
BASE = Model("base", "base")
READY = Replica("r0", "default", "vllm", "unix:/x", serves={"base": "base"})


@pytest.mark.parametrize("state", [state for state in ReplicaState if state is not ReplicaState.READY])
def test_only_ready_replicas_take_requests(state: ReplicaState) -> None:
    """A replica in any other state is passed over."""
    other = msgspec.structs.replace(READY, name="r1", state=state)
    assert eligible(ANYBODY, BASE, Route.CHAT, (other, READY)) == (READY,)


def test_a_replica_must_have_the_version_and_the_route() -> None:
    """What is not loaded or not offered there cannot be asked for there."""
    chat_only = msgspec.structs.replace(READY, routes=frozenset({Route.CHAT}))
    assert eligible(ANYBODY, Model("legal", "legal@1", parent="base"), Route.CHAT, (READY,)) == ()
    assert eligible(ANYBODY, BASE, Route.EMBEDDINGS, (chat_only,)) == ()
    assert eligible(ANYBODY, BASE, Route.CHAT, (chat_only,)) == (chat_only,)


def test_the_least_loaded_replica_is_chosen() -> None:
    """Among equals it is the first; without any there is a reason instead."""
    replicas = [msgspec.structs.replace(READY, name=f"r{number}") for number in range(3)]
    assert least_outstanding(replicas, {}).replica == replicas[0]
    assert least_outstanding(replicas, {"r0": 2, "r1": 1, "r2": 1}).replica == replicas[1]
    assert least_outstanding(replicas[:1], {"r0": 9}).replica == replicas[0]
    assert least_outstanding((), {}).replica is None
    assert least_outstanding((), {}).reason
