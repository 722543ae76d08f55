"""What gateways are told of replicas that requests can wait for, and of how much each one takes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.unit.control.conftest import BASE, NOW, version, view_of
from tuneplex.control.seen import LoadFailure, Seen
from tuneplex.control.view import Outlook
from tuneplex.control.wanted import wanted
from tuneplex.types import FleetSpec, FleetView, PoolSpec, Replica, ReplicaState, Residency

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]

POOL = PoolSpec("default", concurrent=7, max_loras=3)
ADA, BOB = version("ada"), version("bob")
ALL = frozenset({"base", ADA.id, BOB.id})
replace = msgspec.structs.replace


def only(view: FleetView) -> Replica:
    """The one replica of a view."""
    (replica,) = view.replicas
    return replica


def test_a_replica_that_starts_is_expected_to_serve_all_of_its_pool(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """When it is ready is told once a start of its pool was seen."""
    spec = make_spec(ADA, BOB, version("other", pool="elsewhere"), pools=(POOL,))
    starting = make_seen("default-0", POOL, answered=False, models=())
    replica = only(view_of(spec, starting))
    assert (replica.state, replica.serves, replica.awaited) == (ReplicaState.STARTING, {}, ALL)
    assert replica.ready_at is None
    assert only(view_of(spec, starting, outlook=Outlook(starts={"default": 40.0}))).ready_at == NOW - 100 + 40


def test_a_replica_that_was_not_launched_yet_is_expected_without_an_endpoint(make_spec: MakeSpec) -> None:
    """It is told by the name that it will have, unless it could not be launched."""
    spec = make_spec(ADA, BOB, pools=(replace(POOL, tenants=("acme",)),))
    replica = only(view_of(spec))
    assert (replica.name, replica.endpoint, replica.state) == ("default-0", "", ReplicaState.REQUESTED)
    assert (replica.awaited, replica.tenants) == (ALL, frozenset({"acme"}))
    assert view_of(spec, outlook=Outlook(troubles={"default"})).replicas == ()


def test_a_replica_that_ended_is_expected_until_it_is_given_up(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """It starts again after a while, which counts until it is ready."""
    spec, outlook = make_spec(ADA, pools=(POOL,)), Outlook(starts={"default": 40.0})
    ended = make_seen("default-0", POOL, ended=NOW - 0.5)
    replica = only(view_of(spec, ended, outlook=outlook))
    assert (replica.state, replica.endpoint, replica.awaited) == (
        ReplicaState.STARTING,
        "",
        frozenset({"base", ADA.id}),
    )
    assert replica.ready_at == NOW - 0.5 + 1.0 + 40.0
    hopeless = make_seen("default-0", POOL, ended=NOW - 0.5, past=tuple(NOW - 10 - n for n in range(4)))
    assert view_of(spec, hopeless, outlook=outlook).replicas == ()


def test_one_that_nobody_wants_any_more_is_not_waited_for(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Neither one that drains nor one that still starts, nor an ended one of a pool that is gone."""
    spec = make_spec(ADA, BOB, pools=(POOL,))
    draining = make_seen("default-1", POOL, draining_since=NOW)
    surplus = make_seen("default-2", POOL, answered=False, models=())
    ended = make_seen("gone-0", PoolSpec("gone"), ended=NOW - 1)
    view = view_of(spec, make_seen("default-0", POOL, ADA.id, BOB.id), draining, surplus, ended)
    assert {replica.name: replica.awaited for replica in view.replicas} == dict.fromkeys(
        ("default-0", "default-1", "default-2"), frozenset()
    )


def test_an_adapter_is_awaited_until_it_is_there_or_has_failed_too_often(
    make_spec: MakeSpec, make_seen: MakeSeen
) -> None:
    """One that failed once or twice is tried again soon; an engine that cannot load any is waited for in vain."""
    spec = make_spec(ADA, BOB, pools=(POOL,))
    assert only(view_of(spec, make_seen("default-0", POOL, ADA.id))).awaited == {BOB.id}
    twice = make_seen("default-0", POOL, ADA.id, failures={BOB.id: LoadFailure(2, NOW, "busy")})
    assert only(view_of(spec, twice)).awaited == {BOB.id}
    thrice = make_seen("default-0", POOL, ADA.id, failures={BOB.id: LoadFailure(3, NOW, "bad")})
    assert only(view_of(spec, thrice)).awaited == frozenset()
    fixed = make_seen("default-0", POOL, "ada", loads_adapters=False)
    assert only(view_of(spec, fixed)).awaited == frozenset()


def test_an_external_engine_that_does_not_answer_is_not_waited_for(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Nobody knows whether it will ever come; for a short silence it is waited."""
    pool = PoolSpec("default", launcher="external", urls=("http://one",))
    spec = make_spec(ADA, pools=(pool,))
    seen = make_seen("default-0", pool, answered=False, models=(), silent_since=NOW - 1)
    wish = replace(seen.launched, settings=wanted_settings(pool))
    assert only(view_of(spec, replace(seen, launched=wish))).awaited == {"base", ADA.id}
    assert only(view_of(spec, replace(seen, launched=wish, silent_since=NOW - 60))).awaited == frozenset()


def wanted_settings(pool: PoolSpec) -> str:
    """As control writes them down for the first engine of a pool."""
    return wanted(pool, BASE)[0].settings


def test_places_are_the_pools_and_slots_the_engines(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Slots are as the engine tells; until it does, as a local one was started; of others nobody knows."""
    seen = make_seen("default-0", POOL)
    replica = only(view_of(make_spec(pools=(POOL,)), seen))
    assert (replica.concurrent, replica.slots) == (7, 3)
    told = replace(seen, residency=Residency(slots=5))
    assert only(view_of(make_spec(pools=(POOL,)), told)).slots == 5
    foreign = PoolSpec("default", launcher="external", urls=("http://one",), concurrent=9)
    replica = only(view_of(make_spec(pools=(foreign,)), make_seen("default-0", foreign)))
    assert (replica.concurrent, replica.slots) == (9, None)


def test_only_a_local_engine_is_replaced_for_more_places() -> None:
    """An external one keeps its own settings, so a changed number makes no other engine of it."""
    external = PoolSpec("default", launcher="external", urls=("http://one",))
    assert wanted_settings(external) == wanted_settings(replace(external, concurrent=9))
    assert wanted_settings(POOL) != wanted_settings(replace(POOL, concurrent=9))
