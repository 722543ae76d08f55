"""Whole fleets whose engines are full, gone or not yet there: requests wait, and are answered."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.fleets import Fleet, MakeFleet
from tests.support.patient import Patient, keeping_busy, statuses_until
from tuneplex.types import AdapterVersion, GatewaySettings, Waiting

Adapters = dict[str, AdapterVersion]


def patient(fleet: Fleet) -> None:
    """Tell streams every tenth of a second that they wait."""
    settings = GatewaySettings(waiting=Waiting(comment_s=0.1))
    fleet.apply(replace(fleet.spec, gateway=settings))


def engine_pid(fleet: Fleet) -> int:
    """The first process of the only engine."""
    pid = fleet.ready().replicas[0].pid
    assert pid is not None
    return pid


def test_an_idle_fleet_whose_engine_was_killed(make_fleet: MakeFleet) -> None:
    """What comes while it starts again waits, is told so, and is answered."""
    fleet = make_fleet()
    fleet.ready()
    patient(fleet)
    fleet.kill(engine_pid(fleet))
    fleet.until(lambda status: status.replicas and status.replicas[0].state != "ready")
    asking = [Patient(fleet, "base") for _ in range(4)]
    assert [one.answered for one in asking] == [True] * 4, [one.error for one in asking]
    assert all(one.comments or "x-tuneplex-waited" in one.headers for one in asking)
    fleet.ready(restarts=1)


def test_a_full_fleet_whose_engine_was_killed(make_fleet: MakeFleet) -> None:
    """What it worked on breaks with an error event; what waited for a place is answered by the next one, all of it."""
    fleet = make_fleet(concurrent=2)
    fleet.ready()
    patient(fleet)
    slow = {"fake_fault": {"between_chunks_s": 0.5}, "max_tokens": 60, "ignore_eos": True}
    working = [Patient(fleet, "base", **slow) for _ in range(2)]
    fleet.wait_for(lambda: all(one.status == 200 and one.events for one in working))
    waiting = [Patient(fleet, "base") for _ in range(4)]
    fleet.wait_for(lambda: all(one.comments for one in waiting))
    fleet.kill(engine_pid(fleet))
    assert not any(one.answered for one in working)
    assert all("error" in one.events[-1] for one in working)
    assert [one.answered for one in waiting] == [True] * 4, [one.error for one in waiting]


@pytest.mark.parametrize("gateways", [1, 2])
def test_an_adapter_that_is_being_added(make_fleet: MakeFleet, adapters: Adapters, gateways: int) -> None:
    """From the moment that the fleet knows it its requests are answered: none meets an engine without it."""
    fleet = make_fleet(gateways=gateways)
    fleet.ready()
    with_it = replace(fleet.spec, adapters=(adapters["ada"],))
    statuses = statuses_until(fleet, "ada", lambda: fleet.apply(with_it))
    assert {status for status, _ in statuses} == {404, 200}


def test_a_cold_adapter_beside_a_hot_one(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """With one slot, and more requests for one adapter than there are places, the other one has its turns."""
    fleet = make_fleet(adapters["ada"], adapters["bob"], max_loras=1, concurrent=4)
    fleet.ready()
    with keeping_busy(fleet, "ada", 6) as wrong:
        asking = [Patient(fleet, "bob") for _ in range(3)]
        assert [one.answered for one in asking] == [True] * 3, [one.error for one in asking]
    assert wrong == []
