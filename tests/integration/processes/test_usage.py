"""What has been used, through crashes of every process."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.fleets import Fleet, MakeFleet
from tuneplex.journal import Finished
from tuneplex.records import Store

NUMBER = 8000


def kept(fleet: Fleet) -> list[Finished]:
    """The requests that the fleet's store has."""
    store = Store(fleet.state.store_url(fleet.spec))
    try:
        return list(store.each_request("fleet", 0, 2e9))
    finally:
        store.close()


def when(fleet: Fleet, condition: Callable[[list[Finished]], bool]) -> list[Finished]:
    """Wait until the store has such requests."""
    return fleet.wait_for(lambda: found if condition(found := kept(fleet)) else None)


def test_a_request_is_in_the_store_soon(make_fleet: MakeFleet) -> None:
    """What was answered is in the store a moment later, with its tokens."""
    running = make_fleet()
    running.ready()
    running.ask()
    (one,) = when(running, bool)
    assert (one.model, one.outcome, one.completion, one.estimated) == ("base", "complete", 8, False)
    assert one.attempts[0].engine.startswith("default-0/")


@pytest.mark.parametrize("role", ["gateway_process", "control_process"])
def test_a_crash_loses_nothing(make_fleet: MakeFleet, role: str) -> None:
    """Whichever process is killed, what was answered is there once, and what was under way is there too."""
    running = make_fleet()
    running.ready()
    running.ask()
    with running.stream(max_tokens=NUMBER, fake_fault={"between_chunks_s": 0.001}) as stream:
        for _ in range(200):
            next(stream)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:  # how far the first 200 have come is written down meanwhile
            next(stream)
        pid = running.pid(role)
        running.kill(pid)
        running.gone(pid)
        running.ready()
    found = when(running, lambda found: len(found) == 2)
    first, broken = sorted(found, key=lambda one: one.arrived)
    assert (first.outcome, first.completion) == ("complete", 8)
    if role == "gateway_process":
        assert (broken.outcome, broken.estimated) == ("gateway_crashed", True)
        assert 128 <= broken.completion <= NUMBER
    else:
        assert broken.outcome == "client_gone"
        assert 190 <= broken.completion <= NUMBER
    running.ask()
    assert len({one.id for one in when(running, lambda found: len(found) == 3)}) == 3
    running.wait_for(lambda: len(list(running.state.journal.iterdir())) == 1 or None)


def test_nothing_is_lost_when_a_fleet_ends(make_fleet: MakeFleet) -> None:
    """What was answered just before a fleet ended is in the store soon after the next one has started."""
    running = make_fleet()
    running.ready()
    for _ in range(5):
        running.ask()
    running.end()
    running.start()
    running.ready()
    assert len(when(running, lambda found: len(found) == 5)) == 5
