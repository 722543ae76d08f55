"""What control decides to do about replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from tuneplex.control.actions import Action, Drain, Forget, Keep, Launch, Stop
from tuneplex.control.decide import Situation, decide, gave_up, restart_at
from tuneplex.control.seen import Limits, Seen
from tuneplex.types import FleetSpec, PoolSpec

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

NOW = 1_000_000.0
POOL = PoolSpec("default")
CHANGED = PoolSpec("default", max_loras=8)


def launched(actions: Sequence[Action]) -> list[str]:
    """The names of the replicas that are started."""
    return [action.order.replica for action in actions if isinstance(action, Launch)]


def drained(actions: Sequence[Action]) -> list[str]:
    """The names of the replicas that take no new requests, if nothing else happens."""
    return [action.replica if isinstance(action, Drain) else "" for action in actions]


def test_missing_replicas_are_launched(make_spec: MakeSpec, make_situation: MakeSituation) -> None:
    """An empty fleet starts all its replicas at once, each with a name of its own."""
    actions = decide(make_situation(make_spec(replicas=3)))
    assert launched(actions) == ["default-0", "default-1", "default-2"]
    assert {action.order.peers for action in actions if isinstance(action, Launch)} == {3}


def test_a_fleet_that_is_as_it_should_be_rests(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Nothing is done when everything is as it should be."""
    assert decide(make_situation(make_spec(), make_seen("default-0", POOL))) == ()


def test_names_fill_gaps(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """A new replica takes the lowest free number."""
    actions = decide(make_situation(make_spec(replicas=3), make_seen("default-1", POOL)))
    assert launched(actions) == ["default-0", "default-2"]


def test_a_dead_replica_restarts_after_its_backoff(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A replica that ended is started again under its name, not before its delay has passed."""
    early = make_seen("default-0", POOL, ended=NOW - 0.5)
    due = make_seen("default-0", POOL, ended=NOW - 1.5)
    assert decide(make_situation(make_spec(), early)) == ()
    (again,) = decide(make_situation(make_spec(), due))
    assert isinstance(again, Launch)
    assert (again.order.replica, again.order.restarts, again.order.failures) == ("default-0", 1, (NOW - 1.5,))


@pytest.mark.parametrize("earlier, delay", [(0, 1), (1, 2), (2, 4), (3, 8)])
def test_the_backoff_doubles(make_seen: MakeSeen, earlier: int, delay: float) -> None:
    """Each failure doubles the delay before the next start."""
    past = tuple(NOW - 100 - number for number in range(earlier))
    record = make_seen("default-0", POOL, ended=NOW, past=past).launched
    assert restart_at(record, 0.0, Limits()) == NOW + delay


def test_the_backoff_has_a_limit(make_seen: MakeSeen) -> None:
    """However often a replica has failed, the delay stays bounded."""
    record = make_seen("default-0", POOL, ended=NOW, past=tuple(NOW - number for number in range(30))).launched
    assert restart_at(record, 0.0, Limits(give_up_after=99)) == NOW + 60


def test_giving_up_after_repeated_failures(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The fifth failure within a quarter of an hour is the last; the replica stays dead however long one waits."""
    dead = make_seen("default-0", POOL, ended=NOW, past=tuple(NOW - 60 * number for number in range(1, 5)))
    assert gave_up(dead.launched, 0.0, Limits())
    assert decide(make_situation(make_spec(), dead, now=NOW + 1e6)) == ()


def test_failures_far_apart_do_not_add_up(make_seen: MakeSeen) -> None:
    """A replica that fails once a day is started again every time."""
    dead = make_seen("default-0", POOL, ended=NOW, past=tuple(NOW - 86400 * number for number in range(1, 9)))
    assert not gave_up(dead.launched, 0.0, Limits())
    assert restart_at(dead.launched, 0.0, Limits()) == NOW + 1


def test_applying_the_fleet_again_gives_new_chances(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Failures from before the fleet file was applied do not count."""
    dead = make_seen("default-0", POOL, ended=NOW - 10, past=tuple(NOW - 60 * number for number in range(1, 5)))
    actions = decide(make_situation(make_spec(), dead, applied_at=NOW - 1))
    assert launched(actions) == ["default-0"]


def test_a_silent_replica_is_restarted(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """An engine that was ready and has not answered for over a minute is stopped, so that it is started again."""
    waiting = make_seen("default-0", POOL, silent_since=NOW - 50)
    silent = make_seen("default-0", POOL, silent_since=NOW - 61)
    assert decide(make_situation(make_spec(), waiting)) == ()
    assert [type(action) for action in decide(make_situation(make_spec(), silent))] == [Stop]


def test_a_starting_replica_may_be_silent(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Loading a large model takes as long as it takes."""
    loading = make_seen("default-0", POOL, answered=False, silent_since=NOW - 3000)
    assert decide(make_situation(make_spec(), loading)) == ()


def test_fewer_replicas_drain_then_stop_then_are_forgotten(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A replica that is not wanted any more first takes no new requests, ends when its last one has, and is gone."""
    spec, kept = make_spec(), make_seen("default-0", POOL)
    surplus = make_seen("default-1", POOL)
    assert [type(action) for action in decide(make_situation(spec, kept, surplus))] == [Drain]
    draining = msgspec.structs.replace(surplus, draining_since=NOW - 1)
    assert decide(make_situation(spec, kept, draining)) == ()
    let_go = msgspec.structs.replace(draining, drained=True)
    assert [type(action) for action in decide(make_situation(spec, kept, let_go))] == [Stop]
    stopping = msgspec.structs.replace(let_go, stopping=True)
    assert decide(make_situation(spec, kept, stopping)) == ()
    ended = make_seen("default-1", POOL, ended=NOW)
    assert decide(make_situation(spec, kept, ended)) == (Forget("default-1"),)


def test_draining_has_a_limit(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """A request that never ends does not keep a replica for ever."""
    stuck = make_seen("default-1", POOL, draining_since=NOW - 301)
    actions = decide(make_situation(make_spec(), make_seen("default-0", POOL), stuck))
    assert [type(action) for action in actions] == [Stop]


def test_a_draining_replica_that_is_wanted_again_stays(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """More replicas again: the one that was leaving is kept, not replaced."""
    leaving = make_seen("default-1", POOL, draining_since=NOW - 1)
    actions = decide(make_situation(make_spec(replicas=2), make_seen("default-0", POOL), leaving))
    assert actions == (Keep("default-1"),)


def test_the_surplus_replica_is_the_useless_one(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Of two replicas, the one that serves stays."""
    starting = make_seen("default-0", POOL, answered=False)
    actions = decide(make_situation(make_spec(), starting, make_seen("default-1", POOL)))
    assert drained(actions) == ["default-0"]


def test_changed_settings_start_a_new_replica_first(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """A rolling replacement starts the new replica while the old one goes on serving."""
    actions = decide(make_situation(make_spec(max_loras=8), make_seen("default-0", POOL)))
    assert launched(actions) == ["default-1"]
    assert len(actions) == 1


def test_the_old_replica_serves_until_the_new_one_does(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The old replica drains when its successor is ready with all adapters, not before."""
    spec, old = make_spec(max_loras=8), make_seen("default-0", POOL)
    starting = make_seen("default-1", CHANGED, answered=False)
    assert decide(make_situation(spec, old, starting)) == ()
    actions = decide(make_situation(spec, old, make_seen("default-1", CHANGED)))
    assert drained(actions) == ["default-0"]


def test_rolling_goes_one_by_one(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """Of three replicas, at most one more than wanted runs at a time, and never fewer than wanted serve."""
    spec = make_spec(replicas=3, max_loras=8)
    old = [make_seen(f"default-{number}", POOL) for number in range(3)]
    assert launched(decide(make_situation(spec, *old))) == ["default-3"]
    actions = decide(make_situation(spec, *old, make_seen("default-3", CHANGED)))
    assert [type(action) for action in actions] == [Drain]


def test_new_settings_that_do_not_start_take_nothing_away(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """When the new replica is given up, the old one goes on."""
    failed = make_seen("default-1", CHANGED, ended=NOW, past=tuple(NOW - number for number in range(1, 6)))
    assert decide(make_situation(make_spec(max_loras=8), make_seen("default-0", POOL), failed)) == ()


def test_without_a_free_gpu_the_old_replica_makes_room(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Where two copies do not fit, the old replica is drained before the new one starts."""
    spec = make_spec(gpus=1, max_loras=8)
    old = make_seen("default-0", PoolSpec("default", gpus=1))
    actions = decide(make_situation(spec, old, free_gpus=0))
    assert drained(actions) == ["default-0"]
    assert launched(decide(make_situation(spec, old, free_gpus=1))) == ["default-1"]


def test_a_removed_pool_is_drained(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """The replicas of a pool that is not in the fleet any more go away."""
    actions = decide(make_situation(make_spec(), make_seen("default-0", POOL), make_seen("old-0", PoolSpec("old"))))
    assert drained(actions) == ["old-0"]


def test_external_engines_are_matched_by_their_url(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Another URL attaches another engine and lets go of the old one; what stays is left alone."""
    first = PoolSpec("default", launcher="external", urls=("http://one",))
    spec = make_spec(pools=[msgspec.structs.replace(first, urls=("http://one", "http://two"))])
    actions = decide(make_situation(spec, make_seen("default-0", first)))
    orders = [action.order for action in actions if isinstance(action, Launch)]
    assert [(order.replica, order.url) for order in orders] == [("default-1", "http://two")]
    assert len(actions) == 1


def test_external_engines_are_never_stopped_for_their_silence(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """An external engine that does not answer is not ours to restart."""
    pool = PoolSpec("default", launcher="external", urls=("http://one",))
    silent = make_seen("default-0", pool, silent_since=NOW - 1000)
    assert decide(make_situation(make_spec(pools=[pool]), silent)) == ()
