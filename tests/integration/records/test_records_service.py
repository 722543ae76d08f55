"""How well requests were served, by the store's sums."""

from __future__ import annotations

import math
from random import Random

import pytest

from tests.support.past import over
from tuneplex.gateway.counters import Outcome
from tuneplex.journal import CRASHED, Finished
from tuneplex.records import FirstTokens, Served, Store
from tuneplex.records.service import BAD, GOOD

NOT_COUNTED = {"client_gone", "refused", "deadline"}


def served(store: Store, *, by: tuple[str, ...] = (), since: float = 0, late_s: float = math.inf) -> list[Served]:
    """What the store adds up."""
    return store.served("shop", since, by=by, late_s={"legal": 1.0}, usual_s=late_s)


def test_each_outcome_is_good_bad_or_not_counted() -> None:
    """Whatever a request can end as has a place in the sums."""
    assert {*Outcome, CRASHED} == {*GOOD, *BAD, *NOT_COUNTED}


@pytest.mark.parametrize(
    "values, good, bad",
    [
        ({}, 1, 0),
        ({"outcome": "cut"}, 1, 0),
        *(({"outcome": outcome, "status": 502}, 0, 1) for outcome in BAD),
        *(({"outcome": outcome, "status": 400}, 0, 0) for outcome in sorted(NOT_COUNTED)),
        ({"outcome": "rejected", "status": 503, "code": "no_ready_engine", "count": 3}, 0, 3),
        ({"outcome": "rejected", "status": 504, "code": "deadline_exceeded"}, 0, 0),
        ({"outcome": "rejected", "status": 429, "code": "rate_limit_exceeded"}, 0, 0),
        ({"outcome": "rejected", "status": 404, "code": "model_not_found"}, 0, 0),
        ({"outcome": "client_gone", "status": 499, "stream": True, "closed": 9.0}, 0, 0),
        ({"outcome": "client_gone", "status": 499, "stream": True, "closed": 9.0, "model": "legal"}, 0, 1),
        ({"outcome": "client_gone", "status": 499, "closed": 9.0, "model": "legal"}, 0, 0),
        ({"outcome": "client_gone", "stream": True, "closed": 9.0, "model": "legal", "first_token_s": 0.2}, 0, 0),
    ],
)
def test_what_counts(store: Store, values: dict[str, object], good: int, bad: int) -> None:
    """Ours are failures, refusals from 500 on and streams that were left when they were late; clients' are not."""
    store.keep_requests("shop", [over(1, **values)])
    assert [(one.good, one.bad) for one in served(store)] == [(good, bad)]


def test_times_and_groups(store: Store) -> None:
    """Only what was over since then counts, by model and tenant, of this fleet."""
    day = 86400
    store.keep_requests("shop", [over(at, tenant=f"t{at % 2}") for at in (day - 5, day + 5, day + 6, 3 * day)])
    store.keep_requests("other", [over(day + 7)])
    assert served(store, by=("model", "tenant"), since=day) == [
        Served(("contacts", "t0"), 2, 0),
        Served(("contacts", "t1"), 1, 0),
    ]


def test_first_tokens(store: Store) -> None:
    """The median and the 95th percentile are those of the sorted times, for each group."""
    chance = Random(7)  # noqa: S311 - no secret
    requests: list[Finished] = []
    for number in range(237):
        first = chance.randrange(5000) / 1000 if number % 7 else None
        requests.append(over(number, tenant=f"t{number % 3}", first_token_s=first))
    store.keep_requests("shop", requests)
    found = store.first_tokens("shop", 0, by=("tenant",))
    for name in ("t0", "t1", "t2"):
        times = sorted(one.first_token_s for one in requests if one.tenant == name and one.first_token_s is not None)
        ranks = [times[math.ceil(len(times) * part / 100) - 1] for part in (50, 95)]
        assert found[name,] == FirstTokens(*ranks)
    assert set(store.first_tokens("shop", 0, by=())) == {()}
    assert store.first_tokens("empty", 0, by=("tenant",)) == {}
