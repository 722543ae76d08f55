"""What a trial counts of requests that are over."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.past import over
from tuneplex.control import comparing as module
from tuneplex.control.comparing import Comparing
from tuneplex.journal import Finished
from tuneplex.policy.sequential import Moments

OLD, NEW = "one@aaaaaaaaaaaa", "one@bbbbbbbbbbbb"


@pytest.fixture
def comparing() -> Comparing:
    """A trial that began after 100 s."""
    return Comparing(OLD, NEW, 100.0)


def one(number: int, version: str = NEW, **values: Any) -> Finished:  # noqa: ANN401 - of any field
    """A request that was answered."""
    return over(number, **{"version": version, "completion": 9, **values})


def test_each_request_counts_once(comparing: Comparing) -> None:
    """However often it is told, and only for its own version."""
    comparing.heard([one(100), one(101), one(100), one(102, OLD), one(103, "one@cccccccccccc"), one(104, "base")])
    comparing.heard([one(101), one(102, OLD)])
    assert (comparing.new.requests, comparing.old.requests) == (2, 1)


def test_what_came_before_the_trial_does_not_count(comparing: Comparing) -> None:
    """Although it was over in it: it had no choice of versions."""
    comparing.heard([one(99, closed=150.0), one(100)])
    assert comparing.new.requests == 1


@pytest.mark.parametrize(
    "outcome, status, counts, error",
    [
        ("complete", 200, 1, 0),
        ("cut", 200, 1, 0),
        ("engine_error", 502, 1, 1),
        ("unreachable", 503, 1, 1),
        ("broken", 502, 1, 1),
        ("timeout", 504, 1, 1),
        ("stopped", 503, 1, 1),
        ("gateway_crashed", 0, 1, 1),
        ("rejected", 500, 1, 1),
        ("rejected", 400, 0, 0),
        ("rejected", 429, 0, 0),
        ("client_gone", 499, 0, 0),
    ],
)
def test_whose_fault_an_end_was(comparing: Comparing, outcome: str, status: int, counts: int, error: int) -> None:
    """What a client broke off or asked wrongly says nothing of a version; everything else that fails does."""
    comparing.heard([one(100, outcome=outcome, status=status, first_token_s=0.5)])
    assert (comparing.new.requests, comparing.new.errors) == (counts, error)
    assert comparing.new.length.count == counts - error


def test_times_and_lengths_are_logarithms_without_the_waiting_here(comparing: Comparing) -> None:
    """A gateway's queue is not the version's fault; what comes after the first token is told for each further one."""
    comparing.heard([one(100, waited_s=2.0, first_token_s=2.5, closed=106.5)])
    assert comparing.new.ttft == Moments(1, math.log(0.5), 0.0)
    assert comparing.new.tpot == Moments(1, math.log(4.0 / 8), 0.0)
    assert comparing.new.length == Moments(1, math.log(10), 0.0)


@pytest.mark.parametrize(
    "values, ttft, tpot",
    [
        ({"first_token_s": None}, 0, 0),
        ({"first_token_s": 0.5, "waited_s": 0.5}, 0, 0),
        ({"first_token_s": 0.5, "completion": 1}, 1, 0),
        ({"first_token_s": 0.5, "closed": 100.5}, 1, 0),
        ({"first_token_s": 0.5, "completion": 0}, 1, 0),
    ],
)
def test_what_has_no_time_is_left_out(comparing: Comparing, values: dict[str, Any], ttft: int, tpot: int) -> None:
    """A reply as a whole has no first token, and one token has no time to the next; they count all the same."""
    comparing.heard([one(100, **values)])
    figures = comparing.new
    assert (figures.requests, figures.ttft.count, figures.tpot.count, figures.length.count) == (1, ttft, tpot, 1)


def test_means_and_spreads(comparing: Comparing) -> None:
    """They are what they are by their definitions, also far from zero."""
    lengths = [10**6, 10**6 + 1, 10**6 + 5]
    comparing.heard([one(100 + at, completion=length - 1) for at, length in enumerate(lengths)])
    logs = [math.log(length) for length in lengths]
    mean = math.fsum(logs) / 3
    found = comparing.new.length
    assert found.mean == pytest.approx(mean, rel=1e-14)
    assert found.m2 == pytest.approx(math.fsum((value - mean) ** 2 for value in logs), rel=1e-4)


def test_there_is_a_bound(comparing: Comparing, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many requests of a version no more are taken, and the other one's still are."""
    assert module._MOST == 20_000
    monkeypatch.setattr(module, "_MOST", 3)
    comparing.heard([one(number) for number in range(100, 110)])
    comparing.heard([one(number, OLD) for number in range(200, 202)])
    assert (comparing.new.requests, comparing.old.requests) == (3, 2)
