"""Requests that are over and what engines have counted, in both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tuneplex.journal import Finished, Tried
from tuneplex.records import EngineCounters, Store

DAY_S = 86400
DAY = 20_000
NOON = DAY * DAY_S + DAY_S / 2
TRIED = [Tried("default-0", "default-0/1", "default", NOON, "complete", 1.5, 10, 20)]


def finished(number: int, **more: object) -> Finished:
    """A request of noon."""
    fields: dict[str, Any] = {
        "id": f"j/{number}", "request_id": f"r{number}", "arrived": NOON, "closed": NOON + 2, "tenant": "acme",
        "key_id": "k1", "model": "sql", "version": "sql@1", "route": "chat/completions", "outcome": "complete",
        "pool": "default", "replica": "default-0", "status": 200, "prompt": 10, "cached": 4, "completion": 20,
        "first_token_s": 0.25, "waited_s": 0.5, "attempts": TRIED,
    }  # fmt: skip
    return Finished(**(fields | more))


def both(store: Store, *by: str, **only: str) -> list[tuple[object, ...]]:
    """Usage of the day and the next one: the group's values and all numbers."""
    found = store.usage("shop", by=by, since=DAY, until=DAY + 1, only=only)
    return [(*one.group.values(), *msgspec.structs.astuple(one)[1:]) for one in found]


def test_a_request_is_kept_once_and_comes_back_whole(store: Store) -> None:
    """Keeping it again changes nothing, whatever is said then; another fleet does not see it."""
    store.keep_requests("shop", [finished(1), finished(2)])
    store.keep_requests("shop", [finished(1, completion=99), finished(3)])
    assert [one.id for one in store.each_request("shop", 0, NOON * 2)] == ["j/1", "j/2", "j/3"]
    assert store.requests("shop", "r1") == [finished(1)]
    assert store.requests("other", "r1") == []


def test_requests_by_their_ends_and_by_their_beginnings(store: Store) -> None:
    """A time has those that were over in it, or those that came in it, each in their order; its end is not in it."""
    long = finished(1, arrived=NOON - 5, closed=NOON + DAY_S)
    store.keep_requests("shop", [long, finished(2), finished(3, arrived=NOON + 1, closed=NOON + 1.5)])
    assert [one.id for one in store.each_request("shop", NOON, NOON + DAY_S)] == ["j/3", "j/2"]
    assert [one.id for one in store.each_request("shop", NOON, NOON + DAY_S + 1)] == ["j/3", "j/2", "j/1"]
    assert [one.id for one in store.each_arrival("shop", NOON - 5, NOON + 1)] == ["j/1", "j/2"]
    assert [one.id for one in store.each_arrival("shop", NOON - 4, NOON + 2)] == ["j/2", "j/3"]


def test_usage_is_the_same_after_days_were_added_up(store: Store) -> None:
    """Also when a request comes again after its day was added up, and what is estimated stands apart."""
    store.keep_requests("shop", [finished(1), finished(2, estimated=True, model="base", tenant="zed")])
    store.keep_requests("shop", [finished(3, closed=NOON + DAY_S), finished(4, outcome="rejected", count=5, prompt=0)])
    store.keep_requests("shop", [finished(9, closed=NOON + 5 * DAY_S)])  # of which nobody asks
    asked = [("tenant",), ("day", "model"), ("outcome",), (), ("key_id", "version", "pool")]
    before = [both(store, *by) for by in asked]
    assert before[0] == [("acme", 7, 20, 12, 60, 0, 0, 0), ("zed", 1, 10, 4, 20, 1, 10, 20)]
    assert both(store, "tenant", model="base") == before[0][1:]
    assert store.last_added_up("shop") is None
    assert store.expire_requests("shop", DAY + 1) == 3
    assert store.last_added_up("shop") == DAY
    assert store.last_added_up("other") is None
    assert [both(store, *by) for by in asked] == before
    assert [one.id for one in store.each_request("shop", 0, NOON * 2)] == ["j/3", "j/9"]
    store.keep_requests("shop", [finished(1)])
    store.expire_requests("shop", DAY + 1)
    assert [both(store, *by) for by in asked] == before


@pytest.mark.parametrize("words", ["zero \0 byte", "half \ud800 a pair"])
def test_odd_words_are_kept_as_far_as_possible(store: Store, words: str) -> None:
    """What a database would not take is left out, and the request is kept."""
    store.keep_requests("shop", [finished(1, code=words)])
    assert len(store.requests("shop", "r1")) == 1


def test_what_an_engine_said_first_stays(store: Store) -> None:
    """Later numbers take the place of those before, but not of the first."""
    first = EngineCounters("default-0/1", "default-0", "default", 1000, 2000, 3, 4, 5, 6)
    other = msgspec.structs.replace(first, engine="default-0/9", since=500)
    store.keep_counters("shop", [first, other])
    store.keep_counters("shop", [msgspec.structs.replace(first, since=9, at=9000, first_prompt=9, prompt=50)])
    assert store.counters("shop") == [other, msgspec.structs.replace(first, at=9000, prompt=50)]
    assert store.counters("other") == []
