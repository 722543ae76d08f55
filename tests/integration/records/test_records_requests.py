"""Requests that are over, in both databases: each once, and added up the same before and after they are let go."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.journal import Finished, Tried
from tuneplex.records import GROUPS, EngineCounters, Store

DAY = 20_000
FLEET = "demo"


def request(number: int, *, day: int = DAY, **fields: object) -> Finished:
    """A request that was over on a day."""
    at = day * 86400.0 + number
    found = Finished(
        id=f"g-1/{number}",
        request_id=f"req-{number}",
        arrived=at - 1.25,
        closed=at,
        tenant="acme",
        key_id="k1",
        model="legal",
        version="legal@1",
        route="chat/completions",
        outcome="complete",
        pool="default",
        replica="default-0",
        status=200,
        prompt=100,
        cached=40,
        completion=10,
        waited_s=0.5,
        first_token_s=0.125,
        attempts=[Tried("default-0", "default-0/1", "default", at - 1, "complete", 1.0, 100, 10)],
    )
    return msgspec.structs.replace(found, **fields)


@pytest.fixture
def kept(store: Store) -> Store:
    """A store with requests of two tenants over two days."""
    store.keep_requests(FLEET, [request(1), request(2, tenant="zeta"), request(3, day=DAY + 1, estimated=True)])
    return store


def everything(store: Store, *by: str) -> list[tuple[object, ...]]:
    """What was used, by these."""
    found = store.usage(FLEET, by=by, since=DAY - 1, until=DAY + 9)
    return [(*one.group.values(), one.requests, one.prompt, one.completion, one.estimated) for one in found]


def test_a_request_is_kept_as_it_was(store: Store) -> None:
    """What is read is what was kept, to the millisecond."""
    one = request(1, code="upstream", stream=True, session="ab", trace="00-x", estimated=True)
    store.keep_requests(FLEET, [one])
    assert store.requests(FLEET, "req-1") == [one]
    assert list(store.each_request(FLEET, 0, 2e9)) == [one]
    assert not store.requests("another", "req-1")


def test_a_request_is_kept_once(kept: Store) -> None:
    """What is there stays as it is, whatever comes later under its id."""
    kept.keep_requests(FLEET, [request(1, completion=999, outcome="gateway_crashed"), request(4)])
    assert [one.completion for one in kept.requests(FLEET, "req-1")] == [10]
    assert everything(kept) == [(4, 400, 40, 1)]


def test_words_that_a_database_would_not_take_are_kept(store: Store) -> None:
    """An engine's own code may hold what is no text; the rest of it is kept."""
    store.keep_requests(FLEET, [request(1, code="a\0b\ud800c")])
    assert store.requests(FLEET, "req-1")[0].code == "abc"


def test_requests_are_read_by_their_ends(kept: Store) -> None:
    """The first moment is in, the last one is not."""
    first, last = DAY * 86400.0 + 1, (DAY + 1) * 86400.0 + 3
    assert [one.request_id for one in kept.each_request(FLEET, first, last)] == ["req-1", "req-2"]


def test_requests_since_a_time_are_the_first_of_them(kept: Store) -> None:
    """What was over since a time is read without an end, but not more of it than is asked for."""
    everything = list(kept.each_request(FLEET, 0, 2e9))
    assert kept.requests_since(FLEET, 0) == everything
    assert kept.requests_since(FLEET, everything[1].closed) == everything[1:]
    assert kept.requests_since(FLEET, 0, limit=2) == everything[:2]


@pytest.mark.parametrize("group", GROUPS)
def test_usage_is_added_up_by_each_group(kept: Store, group: str) -> None:
    """Whatever it is added up by, all of it is there."""
    found = everything(kept, group)
    assert [sum(column) for column in zip(*(row[1:] for row in found), strict=True)] == [3, 300, 30, 1]


def test_usage_of_some(kept: Store) -> None:
    """Only what was asked for is added up."""
    found = kept.usage(FLEET, by=("day",), since=DAY, until=DAY + 1, only={"tenant": "zeta"})
    assert [(one.group, one.requests) for one in found] == [({"day": DAY}, 1)]
    assert kept.usage(FLEET, by=("tenant",), since=0, until=1) == []


def test_days_stay_when_their_requests_are_gone(kept: Store) -> None:
    """Requests that were let go stay added up, and when they come again, or late, that changes nothing."""
    kept.keep_requests(FLEET, [request(7, day=DAY + 2)])
    before = everything(kept, "day", "tenant", "outcome")
    assert kept.expire_requests(FLEET, DAY + 1) == 2
    assert everything(kept, "day", "tenant", "outcome") == before
    assert not kept.requests(FLEET, "req-1")
    kept.keep_requests(FLEET, [request(1), request(2, tenant="zeta"), request(9)])
    assert kept.expire_requests(FLEET, DAY + 1) == 0
    assert everything(kept, "day", "tenant", "outcome") == before
    kept.keep_requests("another", [request(8)])
    assert kept.requests("another", "req-8")


def test_what_journals_may_still_have_stays(kept: Store) -> None:
    """The newest days are not let go of, whatever a clock says, and those of the next days are kept."""
    before = everything(kept, "day", "tenant")
    assert kept.expire_requests(FLEET, DAY * 2) == 0
    kept.keep_requests(FLEET, [request(1), request(3, day=DAY + 1)])
    assert everything(kept, "day", "tenant") == before
    kept.keep_requests(FLEET, [request(9, day=DAY + 2)])
    assert everything(kept)[0][0] == 4


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0, 1e300])
def test_odd_times_are_kept(kept: Store, odd: float) -> None:
    """No time that a journal holds keeps others from being kept, or from being read."""
    tried = [Tried("default-0", "default-0/1", "default", odd, "complete", odd)]
    bad = request(7, arrived=odd, closed=odd, waited_s=odd, first_token_s=odd, attempts=tried)
    kept.keep_requests(FLEET, [bad, request(8)])
    assert len(kept.requests(FLEET, "req-7")) == len(kept.requests(FLEET, "req-8")) == 1


def test_odd_numbers_are_kept(kept: Store) -> None:
    """No number of tokens keeps others from being kept, or from being added up."""
    odd = [request(7 + at, prompt=2**63, cached=-1, completion=2**64, count=2**40, status=-5) for at in range(9)]
    kept.keep_requests(FLEET, odd)
    (before,) = everything(kept)
    assert before[1] == 9 * 2**40 + 300
    kept.expire_requests(FLEET, DAY + 1)
    assert everything(kept) == [before]


def test_what_engines_said_first_stays(store: Store) -> None:
    """Of each start of an engine the first numbers stay, and the last ones are replaced."""
    first = EngineCounters(
        "r-0/1", "r-0", "p", since=5, at=5, first_prompt=7, first_completion=8, prompt=7, completion=8
    )
    later = msgspec.structs.replace(first, since=9, at=9, first_prompt=9, prompt=90, completion=80)
    store.keep_counters(FLEET, [first])
    store.keep_counters(FLEET, [later])
    assert store.counters(FLEET) == [msgspec.structs.replace(first, at=9, prompt=90, completion=80)]
