"""Hard rules and the choice among replicas."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tuneplex.identity import Principal
from tuneplex.policy import eligible, least_outstanding, too_small
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


def sized(*contexts: int | None) -> tuple[Replica, ...]:
    """Ready replicas with these contexts."""
    return tuple(
        msgspec.structs.replace(READY, name=f"r{number}", context=context) for number, context in enumerate(contexts)
    )


@pytest.mark.parametrize(
    "contexts, least, whole, chosen",
    [
        ((100, 200), 0, 0, (0, 1)),
        ((100, 200), 100, 100, (0, 1)),
        ((100, 200), 101, 101, (1,)),
        ((100, 200), 201, 201, ()),
        ((100, None), 201, 201, (1,)),
        ((100, 200), 50, 150, (1,)),  # the first would cut the answer short
        ((100, 200), 50, 250, (0, 1)),  # both would
        ((100, 200), 150, 250, (1,)),
        ((100, None), 50, 250, (1,)),
    ],
)
def test_a_request_goes_where_it_fits(
    contexts: tuple[int | None, ...], least: int, whole: int, chosen: tuple[int, ...]
) -> None:
    """Only replicas with enough context take it, and of them those with room for the whole answer if there are any."""
    replicas = sized(*contexts)
    found = eligible(ANYBODY, BASE, Route.CHAT, replicas, least=least, whole=whole)
    assert found == tuple(replicas[number] for number in chosen)


@pytest.mark.parametrize(
    "contexts, least, largest",
    [((100, 200), 200, None), ((100, 200), 201, 200), ((100, None), 201, None), ((), 201, None)],
)
def test_the_largest_context_is_told_when_it_is_too_small(
    contexts: tuple[int | None, ...], least: int, largest: int | None
) -> None:
    """A request that fits nowhere is told what there is; where some context is unknown it may fit."""
    assert too_small(ANYBODY, BASE, Route.CHAT, sized(*contexts), least) == largest


def test_only_replicas_that_could_take_a_request_make_it_fit() -> None:
    """Those of other tenants, routes and models do not count; those that await the model do."""
    small, other = sized(100, 999)
    changes: tuple[dict[str, Any], ...] = (
        {"tenants": frozenset({"acme"})},
        {"routes": frozenset({Route.CHAT})},
        {"serves": {}},
    )
    for change in changes:
        replicas = (small, msgspec.structs.replace(other, **change))
        assert too_small(ANYBODY, BASE, Route.COMPLETIONS, replicas, 500) == 100
    starting = msgspec.structs.replace(
        other, state=ReplicaState.STARTING, serves={}, awaited=frozenset({"base"}), context=None
    )
    assert too_small(ANYBODY, BASE, Route.COMPLETIONS, (small, starting), 500) is None
