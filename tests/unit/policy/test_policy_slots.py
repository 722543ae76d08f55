"""Which adapter may have a slot."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.policy import Slots
from tuneplex.types import Replica

ONE = Replica("r", "default", "vllm", "unix:/r", slots=1)
TWO = Replica("s", "default", "vllm", "unix:/s", slots=2)


class Desk:
    """Slots, and a clock that the test moves."""

    def __init__(self, *replicas: Replica) -> None:
        self.slots = Slots(quantum_s=1.0)
        self.slots.update(replicas, "base")
        self.now = 0.0

    def begin(self, replica: Replica, version: str, work: float = 1.0) -> None:
        """A request of tenant `a` begins."""
        self.slots.began(replica.name, version, tenant="a", weight=1, work=work, now=self.now)

    def end(self, replica: Replica, version: str) -> None:
        """One is over."""
        self.slots.ended(replica.name, version)


def test_as_many_adapters_as_there_are_slots_and_the_base_beside_them() -> None:
    """A further adapter must wait until one has no request under way; the base and those that are there need not."""
    desk = Desk(TWO)
    for version in ("a@1", "b@1", "b@1"):
        assert desk.slots.fits(TWO, version)
        desk.begin(TWO, version)
    assert [desk.slots.fits(TWO, version) for version in ("a@1", "b@1", "c@1", "base")] == [True, True, False, True]
    desk.end(TWO, "b@1")
    assert not desk.slots.fits(TWO, "c@1")
    desk.end(TWO, "b@1")
    assert desk.slots.fits(TWO, "c@1")


def test_a_replica_of_which_nobody_knows_the_slots_takes_all() -> None:
    """Where the number is not known, nothing is held back."""
    unknown = Replica("u", "default", "openai", "http://u")
    desk = Desk(unknown)
    for number in range(20):
        assert desk.slots.fits(unknown, f"a@{number}")
        desk.begin(unknown, f"a@{number}")


def test_one_that_waits_has_another_closed_once_that_had_its_slot_for_long_enough() -> None:
    """Before, it is told when; then nothing begins with the other one until the slot has changed hands."""
    desk = Desk(ONE)
    desk.begin(ONE, "hot@1")
    desk.now = 0.4
    assert not desk.slots.fits(ONE, "cold@1")
    assert desk.slots.settle({"cold@1"}, desk.now) == 1.0
    assert desk.slots.fits(ONE, "hot@1")
    desk.now = 1.0
    assert desk.slots.settle({"cold@1"}, desk.now) is None
    assert desk.slots.closing == {"r": ("hot@1",)}
    assert not desk.slots.fits(ONE, "hot@1")
    desk.end(ONE, "hot@1")
    assert not desk.slots.fits(ONE, "other@1")
    assert desk.slots.fits(ONE, "cold@1")
    desk.begin(ONE, "cold@1")
    assert desk.slots.closing == {}
    assert desk.slots.settle(set(), desk.now) == desk.now
    assert desk.slots.settle(set(), desk.now) is None


def test_pinned_adapters_have_their_slots_beside_what_others_share() -> None:
    """A pinned one needs no free slot and is never closed; all others share the slots that are left, in turns."""
    pinned = msgspec.structs.replace(TWO, pinned=frozenset({"hot@1"}))
    desk = Desk(pinned)
    desk.begin(pinned, "a@1")
    assert [desk.slots.fits(pinned, version) for version in ("hot@1", "a@1", "b@1")] == [True, True, False]
    desk.begin(pinned, "hot@1", work=100)
    desk.now = 1.0
    assert desk.slots.settle({"b@1"}, desk.now) is None
    assert desk.slots.closing == {"s": ("a@1",)}
    desk.end(pinned, "a@1")
    assert [desk.slots.fits(pinned, version) for version in ("hot@1", "a@1", "b@1")] == [True, False, True]


def test_one_that_is_pinned_while_it_is_closed_is_open_again() -> None:
    """Its slot will not be free; the one that waits gets another one."""
    desk = Desk(TWO)
    desk.begin(TWO, "hot@1", work=5)
    desk.begin(TWO, "a@1")
    desk.now = 1.0
    assert not desk.slots.fits(TWO, "b@1")
    desk.slots.settle({"b@1"}, desk.now)
    assert desk.slots.closing == {"s": ("hot@1",)}
    pinned = msgspec.structs.replace(TWO, pinned=frozenset({"hot@1"}))
    desk.slots.update([pinned], "base")
    assert desk.slots.fits(pinned, "hot@1")
    assert desk.slots.settle({"b@1"}, desk.now) == desk.now
    assert not desk.slots.fits(pinned, "b@1")
    desk.slots.settle({"b@1"}, desk.now)
    assert desk.slots.closing == {"s": ("a@1",)}


def test_one_slot_is_shared_even_if_all_are_said_to_be_pinned() -> None:
    """Whatever an engine says, no adapter is kept waiting for ever."""
    pinned = msgspec.structs.replace(ONE, pinned=frozenset({"hot@1"}))
    assert Desk(pinned).slots.fits(pinned, "a@1")


def test_who_was_served_most_is_closed() -> None:
    """Of two that had their slots for long enough, it is the one with more work for its weight."""
    desk = Desk(TWO)
    desk.begin(TWO, "a@1", work=5)
    desk.begin(TWO, "b@1", work=3)
    desk.slots.began("s", "b@1", tenant="b", weight=3, work=9, now=0.0)
    desk.now = 2.0
    assert not desk.slots.fits(TWO, "c@1")
    desk.slots.settle({"c@1"}, desk.now)
    assert desk.slots.closing == {"s": ("a@1",)}


def test_one_that_waits_closes_one_other_though_it_could_go_to_two_replicas() -> None:
    """It needs one slot, wherever it is."""
    desk = Desk(ONE, TWO)
    for replica, version in ((ONE, "a@1"), (TWO, "b@1"), (TWO, "c@1")):
        desk.begin(replica, version)
    desk.now = 2.0
    for _ in range(3):
        assert not desk.slots.fits(ONE, "w@1")
        assert not desk.slots.fits(TWO, "w@1")
        desk.slots.settle({"w@1"}, desk.now)
    assert sum(map(len, desk.slots.closing.values())) == 1


def test_when_the_one_that_waits_leaves_what_was_closed_for_it_is_opened() -> None:
    """And the queue is to be looked through at once."""
    desk = Desk(ONE)
    desk.begin(ONE, "hot@1")
    desk.now = 2.0
    desk.slots.fits(ONE, "cold@1")
    desk.slots.settle({"cold@1"}, desk.now)
    assert not desk.slots.fits(ONE, "hot@1")
    assert desk.slots.settle(set(), desk.now) == desk.now
    assert desk.slots.fits(ONE, "hot@1")
    assert desk.slots.settle(set(), desk.now) is None


def test_what_other_gateways_have_under_way_takes_slots_too() -> None:
    """And what they close is closed here, with the slot kept for the one they closed it for."""
    desk = Desk(ONE)
    desk.slots.hear({"r": {"hot@1": 2, "base": 3}}, {}, 0.0)
    assert not desk.slots.fits(ONE, "cold@1")
    assert desk.slots.fits(ONE, "hot@1")
    desk.slots.hear({"r": {"hot@1": 1}}, {"r": ("hot@1",)}, 1.0)
    assert not desk.slots.fits(ONE, "hot@1")
    desk.slots.hear({}, {"r": ("hot@1",)}, 2.0)
    assert not desk.slots.fits(ONE, "cold@1")
    desk.slots.hear({"r": {"their@1": 1}}, {}, 3.0)
    desk.slots.hear({}, {}, 4.0)
    assert desk.slots.fits(ONE, "cold@1")


def test_one_that_only_others_use_can_be_closed() -> None:
    """The slot has been held since it was first heard of."""
    desk = Desk(ONE)
    desk.slots.hear({"r": {"hot@1": 2}}, {}, 0.0)
    assert not desk.slots.fits(ONE, "cold@1")
    assert desk.slots.settle({"cold@1"}, 0.5) == 1.0
    assert desk.slots.settle({"cold@1"}, 1.0) is None
    assert desk.slots.closing == {"r": ("hot@1",)}


def test_when_somebody_else_took_the_slot_another_one_is_closed() -> None:
    """What was closed is opened, and whoever has the slot now is closed once its time is over."""
    desk = Desk(ONE)
    desk.begin(ONE, "hot@1")
    desk.now = 2.0
    desk.slots.fits(ONE, "cold@1")
    desk.slots.settle({"cold@1"}, desk.now)
    desk.end(ONE, "hot@1")
    desk.slots.hear({"r": {"thief@1": 1}}, {}, desk.now)
    assert not desk.slots.fits(ONE, "cold@1")
    assert desk.slots.settle({"cold@1"}, desk.now) == 3.0
    assert desk.slots.closing == {}
    desk.slots.settle({"cold@1"}, 3.0)
    assert desk.slots.closing == {"r": ("thief@1",)}


def test_a_replica_that_is_gone_has_nothing_closed() -> None:
    """Requests that are still under way there may end as always."""
    desk = Desk(ONE, TWO)
    desk.begin(ONE, "hot@1")
    desk.now = 2.0
    desk.slots.fits(ONE, "cold@1")
    desk.slots.settle({"cold@1"}, desk.now)
    desk.slots.update([TWO], "base")
    assert desk.slots.closing == {}
    assert desk.slots.busy == {"r": {"hot@1": 1}}
    desk.end(ONE, "hot@1")
    assert desk.slots.busy == {}


def test_ending_what_never_began_is_an_error() -> None:
    """A count that is wrong is not passed over."""
    with pytest.raises(KeyError):
        Desk(ONE).end(ONE, "hot@1")
