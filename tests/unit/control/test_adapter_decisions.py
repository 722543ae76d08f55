"""Which adapters control loads where, and which version requests get."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.unit.control.conftest import view_of
from tuneplex.control.actions import Load, Unload
from tuneplex.control.decide import Situation, decide
from tuneplex.control.seen import LoadFailure, Seen
from tuneplex.control.view import unmentioned
from tuneplex.engines.server import EngineModel
from tuneplex.types import AdapterVersion, FleetSpec, PoolSpec, ReplicaState, Residency, Resident

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

NOW = 1_000_000.0
POOL = PoolSpec("default")
ONE = AdapterVersion("one", "a" * 64, "/adapters/one", 8, "default")
NEWER = AdapterVersion("one", "b" * 64, "/adapters/one-b", 8, "default")
TWO = AdapterVersion("two", "a" * 64, "/adapters/two", 8, "default")


def test_adapters_are_loaded_one_at_a_time(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A replica loads its next adapter when the one before is there, so that it goes on serving."""
    spec = make_spec(ONE, TWO)
    assert decide(make_situation(spec, make_seen("default-0", POOL))) == (Load("default-0", ONE),)
    busy = make_seen("default-0", POOL, changing=frozenset({ONE.id}))
    assert decide(make_situation(spec, busy)) == ()
    assert decide(make_situation(spec, make_seen("default-0", POOL, ONE.id))) == (Load("default-0", TWO),)


def test_a_restarted_replica_gets_its_adapters_again(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """What a replica has is what it lists, so one that lost everything is loaded anew."""
    bare = make_seen("default-0", POOL)
    assert decide(make_situation(make_spec(ONE), bare)) == (Load("default-0", ONE),)


def test_a_starting_replica_is_not_asked(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Nothing is loaded before the engine answers."""
    assert decide(make_situation(make_spec(ONE), make_seen("default-0", POOL, answered=False))) == ()


def test_a_bad_adapter_does_not_hold_up_the_others(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """While a failed load waits for its next try, the next adapter is loaded."""
    failed = make_seen("default-0", POOL, failures={ONE.id: LoadFailure(1, NOW - 1, "no such file")})
    assert decide(make_situation(make_spec(ONE, TWO), failed)) == (Load("default-0", TWO),)


def test_a_failed_load_is_tried_again_with_backoff(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The delay doubles with each failure."""
    spec = make_spec(ONE)
    for count, delay in ((1, 2), (2, 4), (3, 8), (20, 60)):
        early = make_seen("default-0", POOL, failures={ONE.id: LoadFailure(count, NOW - delay + 0.5, "")})
        due = make_seen("default-0", POOL, failures={ONE.id: LoadFailure(count, NOW - delay, "")})
        assert decide(make_situation(spec, early)) == ()
        assert decide(make_situation(spec, due)) == (Load("default-0", ONE),)


def test_the_view_names_only_what_is_loaded(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Every adapter is a model, but a replica serves only what its engine lists."""
    view = view_of(make_spec(ONE, TWO), make_seen("default-0", POOL, ONE.id))
    assert set(view.models) == {"base", "one", "two"}
    assert view.replicas[0].serves == {"base": "base", ONE.id: ONE.id}
    assert view.models["one"].parent == "base"


def test_a_new_content_takes_over_when_it_is_loaded(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Requests get the old version until a replica has the new one, and then the new one."""
    spec, old = make_spec(NEWER), make_seen("default-0", POOL, ONE.id)
    before = view_of(spec, old)
    assert before.models["one"].version == ONE.id
    assert before.replicas[0].serves[ONE.id] == ONE.id
    both = make_seen("default-0", POOL, ONE.id, NEWER.id)
    after = view_of(spec, both)
    assert after.models["one"].version == NEWER.id
    assert ONE.id not in after.replicas[0].serves
    assert unmentioned(after, both) == {ONE.id}
    assert unmentioned(before, old) == frozenset()


def test_an_adapter_that_moves_is_served_where_it_is_until_it_has_arrived(
    make_spec: MakeSpec, make_seen: MakeSeen
) -> None:
    """A move to another pool leaves no moment without the adapter, and afterwards only the new pool serves it."""
    moved = msgspec.structs.replace(ONE, pool="large")
    large = PoolSpec("large", max_lora_rank=64)
    spec = make_spec(moved, pools=[POOL, large])
    old, new = make_seen("default-0", POOL, ONE.id), make_seen("large-0", large)
    assert [ONE.id in replica.serves for replica in view_of(spec, old, new).replicas] == [True, False]
    arrived = make_seen("large-0", large, ONE.id)
    assert [ONE.id in replica.serves for replica in view_of(spec, old, arrived).replicas] == [False, True]


def test_what_no_view_mentions_is_unloaded_after_a_while(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A removed adapter stays loaded for requests that are on their way to it, then it goes."""
    fresh = make_seen("default-0", POOL, ONE.id, unlisted={ONE.id: NOW - 1})
    stale = make_seen("default-0", POOL, ONE.id, unlisted={ONE.id: NOW - 5})
    assert decide(make_situation(make_spec(), fresh)) == ()
    assert decide(make_situation(make_spec(), stale)) == (Unload("default-0", ONE.id),)


@pytest.mark.parametrize("running,waiting,unloads", [(1, 0, False), (0, 1, False), (0, 0, True)])
def test_what_still_has_requests_stays(
    make_spec: MakeSpec,
    make_seen: MakeSeen,
    make_situation: MakeSituation,
    running: int,
    waiting: int,
    *,
    unloads: bool,
) -> None:
    """An adapter that an engine says is in use is not unloaded yet; another one's requests do not matter."""
    told = Residency(adapters=(Resident(ONE.id, running=running, waiting=waiting), Resident(TWO.id, running=7)))
    seen = make_seen("default-0", POOL, ONE.id, unlisted={ONE.id: NOW - 60}, residency=told)
    assert bool(decide(make_situation(make_spec(), seen))) is unloads


def test_an_openai_server_serves_the_adapters_it_lists(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """An engine that cannot load adapters serves those it has under their plain names, and is asked for no others."""
    pool = PoolSpec("default", launcher="external", engine="openai", urls=("http://one",))
    spec = make_spec(ONE, TWO, pools=[pool])
    seen = make_seen("default-0", pool, "one", loads_adapters=False)
    assert view_of(spec, seen).replicas[0].serves == {"base": "base", ONE.id: "one"}
    assert decide(make_situation(spec, seen)) == ()


def test_an_engine_may_know_the_base_by_another_name(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """An external engine that does not list the base's name serves it under the first name it does list."""
    pool = PoolSpec("default", launcher="external", urls=("http://one",))
    seen = make_seen("default-0", pool, models=(EngineModel("/models/llama"), EngineModel("x", "/models/llama")))
    assert view_of(make_spec(pools=[pool]), seen).replicas[0].serves == {"base": "/models/llama"}


def test_an_unreachable_external_engine_takes_no_requests(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """An external engine that stopped answering is shown as dead until it answers again."""
    pool = PoolSpec("default", launcher="external", urls=("http://one",))
    for silent_s, state in ((1, ReplicaState.READY), (10, ReplicaState.DEAD)):
        seen = make_seen("default-0", pool, silent_since=NOW - silent_s)
        assert view_of(make_spec(pools=[pool]), seen).replicas[0].state is state


def test_a_successor_needs_its_adapters_before_the_old_replica_drains(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """In a rolling replacement the adapters never go without a replica that has them."""
    spec = make_spec(ONE, max_loras=8)
    old = make_seen("default-0", POOL, ONE.id)
    bare = make_seen("default-1", PoolSpec("default", max_loras=8))
    assert decide(make_situation(spec, old, bare)) == (Load("default-1", ONE),)
