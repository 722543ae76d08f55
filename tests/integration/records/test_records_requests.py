"""Requests that are over, as the store finds them again."""

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
