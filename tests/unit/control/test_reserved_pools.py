"""Pools that are reserved for tenants, as control sees them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.unit.control.conftest import view_of
from tuneplex.control.decide import Situation, decide
from tuneplex.control.seen import Seen
from tuneplex.types import FleetSpec, PoolSpec

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

NOW = 1_000_000.0
OPEN, RESERVED = PoolSpec("open"), PoolSpec("own", tenants=("acme", "zeta"))


def reserved(spec: FleetSpec, *seen: Seen) -> dict[str, frozenset[str]]:
    """Who each replica of the view is for."""
    view = view_of(spec, *seen)
    return {replica.name: replica.tenants for replica in view.replicas}


def test_the_view_says_who_a_replica_is_for(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """A replica is reserved as its pool is now, and for nobody when its pool has gone."""
    seen = (make_seen("open-0", OPEN), make_seen("own-0", RESERVED))
    both = frozenset({"acme", "zeta"})
    assert reserved(make_spec(pools=(OPEN, RESERVED)), *seen) == {"open-0": frozenset(), "own-0": both}
    fewer = msgspec.structs.replace(RESERVED, tenants=("acme",))
    assert reserved(make_spec(pools=(OPEN, fewer)), *seen)["own-0"] == frozenset({"acme"})
    assert reserved(make_spec(pools=(OPEN,)), *seen)["own-0"].isdisjoint(both)
    assert reserved(make_spec(pools=(OPEN,)), *seen)["own-0"]


def test_reserving_a_pool_starts_no_engine(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The engines that run stay as they are when the tenants of their pool change."""
    pool = msgspec.structs.replace(RESERVED, name="default", tenants=())
    spec = make_spec(pools=(msgspec.structs.replace(pool, tenants=("acme",)),))
    assert decide(make_situation(spec, make_seen("default-0", pool))) == ()
