"""Requests that are over, as the store finds them again and lets go of them."""

from __future__ import annotations

from tests.support.past import over
from tuneplex.records import MOST_FOUND, Store


def test_requests_are_found_by_their_id(store: Store) -> None:
    """What clients know by one id comes oldest first, of this fleet alone, and the last ones where there are many."""
    store.keep_requests("shop", [over(number, request_id="mine") for number in (7, 3)])
    store.keep_requests("other", [over(9, request_id="mine")])
    assert store.requests("shop", "mine") == [over(3, request_id="mine"), over(7, request_id="mine")]
    assert store.requests("shop", "none") == []
    store.keep_requests("shop", [over(number, request_id="many") for number in range(100, 103 + MOST_FOUND)])
    assert [one.arrived for one in store.requests("shop", "many")] == list(range(103, 103 + MOST_FOUND))


def test_old_requests_stay_added_up(store: Store) -> None:
    """What is let go of, in whatever steps, is the same in all sums; later ones and other fleets are not touched."""
    day = 86400
    old = [over(number, prompt=3, completion=2, count=number % 2 + 1) for number in range(5600)]
    store.keep_requests("shop", [*old, over(day), over(3 * day, prompt=7)])
    store.keep_requests("other", [over(-1)])
    before = store.usage("shop", by=("day", "tenant"), since=0, until=9)
    steps = []
    while count := store.expire_requests("shop", 2):
        steps.append(count)
    assert (sum(steps), len(steps)) == (5601, 6)
    assert store.usage("shop", by=("day", "tenant"), since=0, until=9) == before
    assert [one.id for one in store.each_request("shop", 0, 9 * day)] == [f"g/{3 * day}"]
    store.keep_requests("shop", [over(1, id="g/late", prompt=5)])
    store.keep_requests("shop", old[:10])
    assert store.expire_requests("shop", 2) == 0
    assert store.usage("shop", by=("day", "tenant"), since=0, until=9) == before
    assert store.requests("other", "req--1")
