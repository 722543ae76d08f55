"""What gateways are told of versions beside the promoted ones, and what is loaded for them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.unit.control.conftest import BASE, NOW, version, view_of
from tuneplex.control.actions import Load, Unload
from tuneplex.control.adapters import Use, in_use
from tuneplex.control.decide import Situation, decide
from tuneplex.control.seen import LoadFailure, Seen
from tuneplex.control.view import unmentioned
from tuneplex.types import Candidate, FleetSpec, PoolSpec, Trial

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

POOL = PoolSpec("default")
OLD, NEW, AMY = version("one", "a"), version("one", "b"), version("amy", "c")
TRIAL = Trial(NEW.id, 0.1, "salt")
replace = msgspec.structs.replace


def trying(spec: FleetSpec, *, trial: Trial | None = TRIAL) -> FleetSpec:
    """With the new version beside the old one."""
    return replace(spec, candidates=(Candidate(NEW, trial),))


def test_a_candidate_is_loaded_after_the_adapters(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """And stays loaded as long as it is one; then it goes like any other."""
    spec = trying(make_spec(OLD), trial=None)
    assert decide(make_situation(spec, make_seen("default-0", POOL))) == (Load("default-0", OLD),)
    assert decide(make_situation(spec, make_seen("default-0", POOL, OLD.id))) == (Load("default-0", NEW),)
    both = make_seen("default-0", POOL, OLD.id, NEW.id, unlisted={NEW.id: NOW - 60})
    assert decide(make_situation(spec, both)) == ()
    assert decide(make_situation(make_spec(OLD), both)) == (Unload("default-0", NEW.id),)


def test_a_candidate_is_awaited_until_it_has_failed_too_often(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """On replicas that live, start or will be started, as any adapter of the pool is."""
    spec = trying(make_spec(OLD))
    assert view_of(spec, make_seen("default-0", POOL, OLD.id)).replicas[0].awaited == {NEW.id}
    failed = make_seen("default-0", POOL, OLD.id, failures={NEW.id: LoadFailure(3, NOW, "bad")})
    assert view_of(spec, failed).replicas[0].awaited == frozenset()
    for starting in ([], [make_seen("default-0", POOL, answered=False, models=())]):
        assert view_of(spec, *starting).replicas[0].awaited == {"base", OLD.id, NEW.id}


def test_a_candidate_is_served_under_its_id_beside_the_version_in_use(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Where it is loaded, in its own pool, and nothing says that it be unloaded."""
    spec = trying(make_spec(OLD), trial=None)
    seen = make_seen("default-0", POOL, OLD.id, NEW.id)
    view = view_of(spec, seen)
    assert view.replicas[0].serves == {"base": "base", OLD.id: OLD.id, NEW.id: NEW.id}
    assert unmentioned(view, seen) == frozenset()
    assert view.models["one"].version == OLD.id
    elsewhere = make_seen("other-0", PoolSpec("other"), NEW.id)
    assert NEW.id not in view_of(replace(spec, pools=(POOL, PoolSpec("other"))), elsewhere).replicas[0].serves


def test_a_candidate_takes_over_from_nobody(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Although it is there and the promoted one is not: an earlier one that is there does, or requests wait."""
    spec = trying(make_spec(OLD))
    alone = make_seen("default-0", POOL, NEW.id)
    assert in_use(spec, [alone]) == {"one": Use(OLD.id, "default")}
    earlier = version("one", "d")
    assert in_use(spec, [make_seen("default-0", POOL, NEW.id, earlier.id)]) == {"one": Use(earlier.id, None)}
    assert in_use(make_spec(OLD), [alone]) == {"one": Use(NEW.id, None)}  # as it was, once it is no candidate any more


def test_a_promoted_candidate_takes_over_at_once(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """It is loaded already, so there is no moment in between."""
    both = make_seen("default-0", POOL, OLD.id, NEW.id)
    view = view_of(make_spec(NEW), both)
    assert (view.models["one"].version, view.models["one"].trial) == (NEW.id, None)
    assert view.replicas[0].serves == {"base": "base", NEW.id: NEW.id}


def test_a_trial_is_told_while_somebody_answers_with_its_version(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Where no replica has it, all requests get the old one; a version that is only loaded has no trial."""
    spec, both = trying(make_spec(OLD, AMY)), make_seen("default-0", POOL, OLD.id, NEW.id)
    view = view_of(spec, both)
    assert {name: model.trial for name, model in view.models.items()} == {"base": None, "one": TRIAL, "amy": None}
    assert view_of(spec, make_seen("default-0", POOL, OLD.id)).models["one"].trial is None
    assert view_of(trying(make_spec(OLD), trial=None), both).models["one"].trial is None
    dead = replace(both, launched=replace(both.launched, ended=NOW))
    assert view_of(spec, dead).models["one"].trial is None


def test_versions_that_answer_can_be_asked_for(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """The promoted ones and the candidates, also of an adapter that is no model yet."""
    spec = make_spec(OLD)
    spec = replace(spec, candidates=(Candidate(NEW), Candidate(AMY)))
    view = view_of(spec, make_seen("default-0", POOL, OLD.id, NEW.id))
    assert view.versions == {OLD.id: "one", NEW.id: "one"}
    assert "amy" not in view.models
    loaded = view_of(spec, make_seen("default-0", POOL, OLD.id, AMY.id))
    assert loaded.versions == {OLD.id: "one", AMY.id: "amy"}
    assert BASE.name not in loaded.versions
