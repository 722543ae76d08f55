"""Who is next in the waiting room."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

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
