"""Who is next in the waiting room."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tuneplex.policy import FairQueue, Place


class Wish(NamedTuple):
    """How something waits; what does not matter is 1."""

    tenant: str = "a"
    weight: float = 1
    flow: str = "f"
    share: float = 1
    work: float = 1


ANY = Wish()


def add(queue: FairQueue[str], item: str, wish: Wish = ANY) -> Place[str]:
    """Let an item wait."""
    return queue.add(item, **wish._asdict())


def drain(queue: FairQueue[str]) -> list[str]:
    """All that waits, in the order in which it goes when everything fits."""
    return [item for _ in range(len(queue)) if (item := queue.take(lambda _: True)) is not None]


def test_two_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    """A tenant with few requests goes every second time, though the other one came first with many."""
    queue: FairQueue[str] = FairQueue()
    for number in range(6):
        add(queue, f"a{number}", Wish(tenant="a"))
    add(queue, "b0", Wish(tenant="b"))
    add(queue, "b1", Wish(tenant="b"))
    assert drain(queue) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4", "a5"]


def test_weights_are_shares_of_work_not_of_requests() -> None:
    """A tenant of weight 2 whose requests are four times as large gets half as many of them."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(90):
        add(queue, "heavy", Wish(tenant="heavy", weight=2, work=4))
        add(queue, "light", Wish(tenant="light", weight=1, work=1))
    taken = Counter(drain(queue)[:90])
    assert taken == {"heavy": 30, "light": 60}


def test_low_priority_gets_its_share_within_its_tenant_only() -> None:
    """Priorities divide what their tenant gets, and leave the others' turns where they were."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        add(queue, "high", Wish(tenant="a", flow="high", share=16))
        add(queue, "low", Wish(tenant="a", flow="low", share=1))
        add(queue, "b", Wish(tenant="b", flow="low", share=1))
    taken = Counter(drain(queue)[:136])
    assert taken == {"b": 68, "high": 64, "low": 4}


def test_what_does_not_fit_lets_others_pass_and_keeps_its_turn() -> None:
    """The first that fits goes; what did not fit goes first as soon as it does."""
    queue: FairQueue[str] = FairQueue()
    add(queue, "a0", Wish(tenant="a"))
    add(queue, "b0", Wish(tenant="b"))
    assert queue.take(lambda item: item == "b0") == "b0"
    add(queue, "b1", Wish(tenant="b"))
    assert queue.take(lambda _: True) == "a0"


def test_each_flow_is_asked_for_once_where_nothing_fits() -> None:
    """Only the first of each flow is looked at, and nothing changes."""
    queue: FairQueue[str] = FairQueue()
    for number in range(50):
        add(queue, f"{number % 5}", Wish(flow=f"{number % 5}"))
    asked: list[str] = []

    def never(item: str) -> bool:
        asked.append(item)
        return False

    assert queue.take(never) is None
    assert asked == ["0", "1", "2", "3", "4"]
    assert len(queue) == 50


def test_one_that_is_removed_is_gone_at_once_and_nobody_pays_for_it() -> None:
    """A place that was given up counts for nothing; to give it up twice changes nothing."""
    queue: FairQueue[str] = FairQueue()
    gone = add(queue, "a0", Wish(tenant="a", work=1000))
    add(queue, "a1", Wish(tenant="a"))
    add(queue, "b0", Wish(tenant="b"))
    queue.remove(gone)
    queue.remove(gone)
    assert not gone.waits
    assert queue.waiting() == {"a": 1, "b": 1}
    assert drain(queue) == ["a1", "b0"]
    assert queue.waiting() == {}


def test_none_is_returned_where_nothing_waits() -> None:
    """An empty queue has no next, no heaviest, and no order."""
    queue: FairQueue[str] = FairQueue()
    assert queue.take(lambda _: True) is None
    assert queue.newest_of_heaviest() is None
    assert list(queue.order()) == []
    gone = add(queue, "a0")
    queue.remove(gone)
    assert queue.work_ahead(gone) == 0


@pytest.mark.parametrize("by, expected", [(-150.0, "aab"), (150.0, "bba")])
def test_what_was_really_used_moves_later_turns(by: float, expected: str) -> None:
    """What was charged and not used can be used now; what was used beyond it is paid by waiting."""
    queue: FairQueue[str] = FairQueue()
    for tenant in "ab":
        for _ in range(20):
            add(queue, tenant, Wish(tenant, work=100))
    assert [queue.take(lambda _: True) for _ in range(4)] == ["a", "b", "a", "b"]
    queue.correct(tenant="a", flow="f", by=by)
    assert [queue.take(lambda _: True) for _ in range(3)] == list(expected)


def test_nobody_is_owed_more_than_it_was_charged() -> None:
    """Corrections beyond all reason make turns come early, but never before the time at which one began to wait."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(50):
        add(queue, "b", Wish("b"))
    for _ in range(20):
        queue.take(lambda _: True)
    for _ in range(50):
        add(queue, "a", Wish("a"))
    for _ in range(5):
        queue.take(lambda item: item == "a")
    queue.correct(tenant="a", flow="f", by=-1000)
    taken = [queue.take(lambda _: True) for _ in range(20)]
    assert 9 <= taken.count("b") <= 11


def test_a_correction_of_one_that_was_forgotten_counts_too() -> None:
    """Who is done with little, and then turns out to have used much, begins that much later."""
    queue: FairQueue[str] = FairQueue()
    queue.correct(tenant="a", flow="f", by=-5)
    queue.correct(tenant="a", flow="f", by=6, weight=2)
    for number in range(4):
        add(queue, f"a{number}", Wish("a", weight=2))
        add(queue, f"b{number}", Wish("b", weight=2))
    assert drain(queue)[:6] == ["b0", "b1", "b2", "b3", "a0", "a1"]


def test_what_went_without_waiting_counts_when_others_begin_to_wait() -> None:
    """The last one that went at once is paid before the next turn."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.charge(tenant="a", weight=1, flow="f", share=1, work=3)
    for number in range(4):
        add(queue, f"a{number}", Wish("a"))
        add(queue, f"b{number}", Wish("b"))
    assert drain(queue)[:4] == ["b0", "b1", "b2", "a0"]


def test_other_weights_hold_from_now_on() -> None:
    """They win over those that requests come with, until they are taken back."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(200):
        add(queue, "a", Wish("a", weight=3))
        add(queue, "b", Wish("b", weight=1))
    queue.reweigh({"a": 1.0, "b": 4.0})
    add(queue, "a", Wish("a", weight=3))
    assert Counter(queue.take(lambda _: True) for _ in range(50)) == {"a": 10, "b": 40}
    queue.reweigh({})
    assert Counter(queue.take(lambda _: True) for _ in range(40)) == {"a": 30, "b": 10}


def test_another_weight_leaves_the_work_that_one_is_ahead() -> None:
    """Who was charged much at a tiny weight is not behind for ever once it has its whole weight again."""
    queue: FairQueue[str] = FairQueue()
    queue.reweigh({"a": 0.001})
    for tenant in "ab":
        for _ in range(40):
            add(queue, tenant, Wish(tenant))
    assert Counter(queue.take(lambda _: True) for _ in range(10)) == {"a": 1, "b": 9}
    queue.reweigh({})
    assert Counter(queue.take(lambda _: True) for _ in range(20))["a"] >= 9


def test_the_newest_of_the_lowest_priority_of_the_heaviest_tenant_is_named() -> None:
    """Heaviest is who has most requests waiting for its weight; of those with equally many, who has most work."""
    queue: FairQueue[str] = FairQueue()
    for number in range(9):
        add(queue, f"small{number}", Wish("small"))
    for number in range(8):
        add(queue, f"fewer{number}", Wish("fewer", work=1000))
    for number in range(3):
        add(queue, f"low{number}", Wish("large", flow="low", share=1, work=20))
        add(queue, f"other{number}", Wish("large", flow="other", share=1, work=20))
        add(queue, f"high{number}", Wish("large", flow="high", share=16, work=20))
    for number in range(30):
        add(queue, f"important{number}", Wish("important", weight=100, work=1000))
    found = queue.newest_of_heaviest()
    assert found is not None
    assert found.item == "other2"
    assert (found.tenant, found.flow, found.work) == ("large", "other", 20)


@pytest.mark.parametrize("models", [1000, 7000])
def test_memory_does_not_grow_with_those_that_come_and_go(models: int) -> None:
    """Of thousands of tenants and models, whoever has nothing waiting and nothing to pay is forgotten."""
    queue: FairQueue[str] = FairQueue()
    for number in range(20_000):
        flow = f"m{number % models}"
        queue.charge(tenant=f"t{number}", weight=1, flow=flow, share=1, work=1)
        queue.charge(tenant="always", weight=1, flow=flow, share=1, work=1)
        add(queue, "x", Wish(f"w{number}", flow=flow))
        queue.take(lambda _: True)
        queue.correct(tenant=f"w{number}", flow=flow, by=-0.5)
    known = queue._tenants.members
    assert len(known) < 200
    assert sum(len(tenant.flows.members) for tenant in known.values()) < 400


WORK = st.floats(0.1, 1000)
WISHES = st.builds(
    Wish,
    tenant=st.sampled_from("abcde"),
    weight=st.sampled_from([1, 2, 10]),
    flow=st.sampled_from("xyz"),
    share=st.sampled_from([1, 4, 16]),
    work=WORK,
)


class AnyUse(RuleBasedStateMachine):
    """Whatever is called in whatever order, what waits is known exactly, and order and sums are right."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.places: dict[int, Place[int]] = {}
        self.numbers = itertools.count()

    @rule(wish=WISHES)
    def add(self, wish: Wish) -> None:
        """Something waits."""
        number = next(self.numbers)
        self.places[number] = self.queue.add(number, **wish._asdict())

    @rule(pick=st.randoms(use_true_random=False))
    def remove(self, pick: random.Random) -> None:
        """One of those that wait leaves."""
        if self.places:
            number = pick.choice(sorted(self.places))
            self.queue.remove(self.places.pop(number))

    @rule(tenants=st.sets(st.sampled_from("abcde")))
    def take(self, tenants: set[str]) -> None:
        """One of these tenants has its turn; each flow's first is asked for at most once, and all if none fits."""
        firsts: dict[tuple[str, object], int] = {}
        for number, place in self.places.items():
            firsts.setdefault((place.tenant, place.flow), number)
        asked: list[int] = []

        def fits(number: int) -> bool:
            asked.append(number)
            return self.places[number].tenant in tenants

        taken = self.queue.take(fits)
        assert len(asked) == len(set(asked))
        assert set(asked) <= set(firsts.values())
        if taken is None:
            assert set(asked) == set(firsts.values())
            assert not any(place.tenant in tenants for place in self.places.values())
        else:
            assert taken == asked[-1]
            assert not self.places.pop(taken).waits

    @rule(wish=WISHES)
    def charge(self, wish: Wish) -> None:
        """Something goes at once."""
        self.queue.charge(**wish._asdict())

    @rule(tenant=st.sampled_from("abcde"), flow=st.sampled_from("xyz"), by=st.floats(-1000, 1000))
    def correct(self, tenant: str, flow: str, by: float) -> None:
        """Something was more or less work."""
        self.queue.correct(tenant=tenant, flow=flow, by=by)

    @rule(weights=st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 100)))
    def reweigh(self, weights: dict[str, float]) -> None:
        """Tenants have other weights."""
        self.queue.reweigh(weights)

    @invariant()
    def what_waits_is_known(self) -> None:
        """Numbers are exact."""
        assert len(self.queue) == len(self.places)
        assert self.queue.waiting() == Counter(place.tenant for place in self.places.values())

    @invariant()
    def the_order_has_each_once_and_keeps_each_flow(self) -> None:
        """Everyone has one position, behind those of its flow that came before."""
        order = [place.item for place in self.queue.order()]
        assert sorted(order) == sorted(self.places)
        for flow in {(place.tenant, place.flow) for place in self.places.values()}:
            mine = [number for number in order if (self.places[number].tenant, self.places[number].flow) == flow]
            assert mine == sorted(mine)

    @invariant()
    def the_newest_of_the_heaviest_can_go(self) -> None:
        """It is the last of its flow."""
        found = self.queue.newest_of_heaviest()
        assert (found is None) == (not self.places)
        if found is not None:
            behind = [
                number
                for number, place in self.places.items()
                if (place.tenant, place.flow) == (found.tenant, found.flow) and number > found.item
            ]
            assert not behind


TestAnyUse = AnyUse.TestCase


@given(st.lists(WISHES, min_size=1, max_size=60), st.data())
def test_the_work_ahead_is_about_what_goes_before(wishes: list[Wish], data: st.DataObject) -> None:
    """The estimate is as far off the order as one request of each flow, at most."""
    queue: FairQueue[str] = FairQueue()
    by_tenant = {wish.tenant: wish.weight for wish in wishes}
    by_flow = {(wish.tenant, wish.flow): wish.share for wish in wishes}
    for number, wish in enumerate(wishes):
        add(queue, f"{number}", wish._replace(weight=by_tenant[wish.tenant], share=by_flow[wish.tenant, wish.flow]))
    order = list(queue.order())
    place = data.draw(st.sampled_from(order))
    before = sum(other.work for other in order[: order.index(place)])
    assert abs(queue.work_ahead(place) - before) <= sum(
        max(wish.work for wish in wishes if (wish.tenant, wish.flow) == flow) for flow in by_flow
    ) * len(by_flow)


@given(st.lists(WISHES, min_size=1, max_size=12), st.randoms(use_true_random=False), WISHES)
def test_every_first_goes_within_a_bound(others: list[Wish], chance: random.Random, wish: Wish) -> None:
    """Whatever others send, wherever they fit: after twice what its share would take, and two of each flow."""
    queue: FairQueue[str] = FairQueue()
    others = [other._replace(flow=f"{number}") for number, other in enumerate(others)]
    weights = {other.tenant: other.weight for other in others} | {wish.tenant: wish.weight}
    others = [other._replace(weight=weights[other.tenant]) for other in others]
    for number, other in enumerate(others):
        for _ in range(3):
            add(queue, f"{number}", other)
    for _ in range(chance.choice([0, 10, 400])):
        taken = queue.take(lambda item: others[int(item)].tenant == others[0].tenant)
        if taken is None:
            break
        add(queue, taken, others[int(taken)])
    add(queue, "probe", wish._replace(flow="probe"))
    shares = wish.share + sum(other.share for other in others if other.tenant == wish.tenant)
    bound = 2 * wish.work * sum(weights.values()) / wish.weight * shares / wish.share
    bound += 2 * sum(other.work for other in others) + max(other.work for other in others)
    gone = 0.0
    while True:
        taken = queue.take(lambda item: item == "probe" or chance.random() < 0.9)
        if taken == "probe":
            return
        if taken is not None:
            gone += others[int(taken)].work
            add(queue, taken, others[int(taken)])
        assert gone <= bound
