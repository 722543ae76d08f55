"""Replicas that people have told to take no requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.control.conftest import NOW, version, view_of
from tuneplex.control.actions import Action, Drain, Launch, Stop
from tuneplex.control.decide import Situation, decide
from tuneplex.control.holds import Holds
from tuneplex.control.report import Surroundings, fleet_status
from tuneplex.control.seen import Hold, Limits, Seen
from tuneplex.control.view import Outlook
from tuneplex.launchers.launcher import Launched
from tuneplex.types import FleetSpec, GatewayReport, PoolSpec, ReplicaState

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]

POOL = PoolSpec("default")
HOUR_AGO = Hold(NOW - 3600)
RESTART = Hold(NOW - 1, restarts=True)
LOCAL = Launched("default-0", "default", "local", "vllm", "s", "unix:/run/1")
replace = msgspec.structs.replace


def kinds(actions: Sequence[Action]) -> list[type]:
    """What is done."""
    return [type(action) for action in actions]


def test_a_held_replica_gets_no_requests_and_is_left_alone(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """It is told as draining, what it has is moved when its time is over, and it is never stopped."""
    held = make_seen("default-0", POOL, hold=HOUR_AGO, drain_s=60.0, drained=True)
    assert decide(make_situation(make_spec(), held)) == ()
    (told,) = view_of(make_spec(), held).replicas
    assert (told.state, told.leave_at, told.awaited) == (ReplicaState.DRAINING, NOW - 3540, frozenset())


def test_now_means_now(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """What such a replica works on should go elsewhere from the moment of the wish on, on the gateways' clock."""
    held = make_seen("default-0", POOL, hold=Hold(NOW - 1, moves=True))
    (told,) = view_of(make_spec(), held, outlook=Outlook(ahead=7200.0)).replicas
    assert told.leave_at == NOW - 1 + 7200


def test_no_request_waits_for_a_held_replica_that_starts(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """Its engine may start again; as long as it is held it answers nobody."""
    spec = make_spec(version("ada"))
    starting = make_seen("default-0", POOL, answered=False, models=(), hold=HOUR_AGO)
    (told,) = view_of(spec, starting).replicas
    assert (told.state, told.awaited) == (ReplicaState.STARTING, frozenset())
    ended = make_seen("default-0", POOL, ended=NOW - 0.1, hold=HOUR_AGO)
    assert view_of(spec, ended).replicas == ()


def test_requests_wait_for_a_replica_that_restarts(make_spec: MakeSpec, make_seen: MakeSeen) -> None:
    """While it drains and after it has ended it is expected back with all it should serve."""
    spec = make_spec(version("ada"))
    everything = frozenset({"base", version("ada").id})
    draining = make_seen("default-0", POOL, version("ada").id, hold=RESTART)
    ended = make_seen("default-0", POOL, ended=NOW - 0.1, hold=RESTART)
    (first,), (second,) = view_of(spec, draining).replicas, view_of(spec, ended).replicas
    assert (first.state, second.state) == (ReplicaState.DRAINING, ReplicaState.STARTING)
    assert first.awaited == second.awaited == everything


@pytest.mark.parametrize("state, does", [({}, []), ({"drained": True}, [Stop]), ({"drain_s": 0.5}, [Stop])])
def test_a_restart_stops_what_is_drained_or_out_of_time(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation, state: dict[str, object], does: list[type]
) -> None:
    """The engine ends when nothing is left to be done there, or when its time to drain is over, and not before."""
    assert kinds(decide(make_situation(make_spec(), make_seen("default-0", POOL, hold=RESTART, **state)))) == does


def test_a_restart_is_no_failure(make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation) -> None:
    """The engine is started again at once, and neither this end nor earlier ones count, though it was given up."""
    past = tuple(NOW - number for number in range(1, 9))
    ended = make_seen("default-0", POOL, ended=NOW - 0.01, past=past, hold=RESTART)
    (again,) = decide(make_situation(make_spec(), ended))
    assert isinstance(again, Launch)
    assert (again.order.replica, again.order.failures, again.order.restarts) == ("default-0", (), 1)


def test_the_held_replica_is_the_first_to_go(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Of two replicas that both could serve, the one that is held leaves, and at once."""
    held, other = make_seen("default-0", POOL, hold=HOUR_AGO), make_seen("default-1", POOL)
    actions = decide(make_situation(make_spec(), held, other))
    assert [action.replica for action in actions if isinstance(action, Drain)] == ["default-0"]


def test_the_status_tells_how_far_it_is(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """It shows that the replica is held, the requests of all gateways, and how long they have."""
    held = make_seen("default-0", POOL, hold=Hold(NOW - 10), drain_s=60.0)
    reports = tuple(GatewayReport(index, 1, 1, {"default-0": 2}) for index in range(2))
    (shown,) = fleet_status(make_situation(make_spec(), held), Surroundings("http://x", 0.0, reports)).replicas
    assert (shown.state, shown.held, shown.outstanding, shown.leave_s) == (ReplicaState.DRAINING, "drain", 4, 50.0)
    free = fleet_status(make_situation(make_spec(), make_seen("default-0", POOL)), Surroundings("http://x", 0.0))
    assert (free.replicas[0].held, free.replicas[0].leave_s) == ("", None)


def test_a_removed_pool_drains_for_as_long_as_it_said(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """The time is the replica's own, and gateways are told when it is over."""
    old = make_seen("old-0", PoolSpec("old"), draining_since=NOW - 61, drain_s=60.0)
    assert kinds(decide(make_situation(make_spec(), make_seen("default-0", POOL), old))) == [Stop]
    patient = replace(old, drain_s=90.0)
    assert decide(make_situation(make_spec(), make_seen("default-0", POOL), patient)) == ()
    assert [one.leave_at for one in view_of(make_spec(), patient).replicas if one.name == "old-0"] == [NOW + 29]


def test_a_drain_time_alone_replaces_nothing(
    make_spec: MakeSpec, make_seen: MakeSeen, make_situation: MakeSituation
) -> None:
    """Another `drain` in the fleet file leaves the engines as they are."""
    assert decide(make_situation(make_spec(drain_s=7.0), make_seen("default-0", POOL), limits=Limits())) == ()


def test_holds_outlive_control_but_not_the_fleet(tmp_path: Path) -> None:
    """Another control of the same start finds them, one of a later start does not."""
    path = tmp_path / "holds.json"
    Holds(path, 5.0).keep(LOCAL, HOUR_AGO)
    assert Holds(path, 5.0).of(LOCAL) == HOUR_AGO
    assert Holds(path, 6.0).of(LOCAL) is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_external_replica_is_held_by_its_url(tmp_path: Path) -> None:
    """A new control may give it another name; a local one has another endpoint at each start, and keeps its name."""
    external = replace(LOCAL, launcher="external", endpoint="http://one")
    holds = Holds(tmp_path / "holds.json")
    holds.keep(external, HOUR_AGO)
    assert holds.of(replace(external, replica="default-7")) == HOUR_AGO
    assert holds.of(replace(external, endpoint="http://two")) is None
    holds.keep(LOCAL, RESTART)
    assert holds.of(replace(LOCAL, endpoint="unix:/run/2")) == RESTART


def test_holds_end_with_what_they_are_for() -> None:
    """The hold of a restart ends with the start, that of a replica that is gone with it; others stay."""
    holds, other = Holds(), replace(LOCAL, replica="default-1")
    holds.keep(LOCAL, RESTART)
    holds.keep(other, HOUR_AGO)
    holds.note_start("default-0")
    holds.note_start("default-1")
    assert (holds.of(LOCAL), holds.of(other)) == (None, HOUR_AGO)
    holds.forget_others({"default-0"})
    assert holds.of(other) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"started": 1}', b'{"started": "x", "holds": {}}'])
def test_a_damaged_file_holds_nobody(tmp_path: Path, content: bytes) -> None:
    """Control starts all the same, and the file is whole again after the next wish."""
    path = tmp_path / "holds.json"
    path.write_bytes(content)
    holds = Holds(path, 1.0)
    assert holds.of(LOCAL) is None
    holds.keep(LOCAL, HOUR_AGO)
    assert Holds(path, 1.0).of(LOCAL) == HOUR_AGO


def test_what_cannot_be_written_is_refused_or_let_go(tmp_path: Path) -> None:
    """A wish that would be lost with control is refused; an end is an end even on a full disk."""
    directory = tmp_path / "state"
    directory.mkdir()
    holds = Holds(directory / "holds.json")
    holds.keep(LOCAL, RESTART)
    (directory / "holds.json").unlink()
    directory.rmdir()
    with pytest.raises(OSError, match="No such file"):
        holds.keep(replace(LOCAL, replica="default-1"), HOUR_AGO)
    assert holds.of(LOCAL) == RESTART
    holds.note_start("default-0")
    assert holds.of(LOCAL) is None
