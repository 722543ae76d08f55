"""What engines have counted against what requests say: arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.journal import CRASHED, Finished, Tried
from tuneplex.records import EngineCounters
from tuneplex.records.reconcile import Bounds, Line, Reckoning

COUNTERS = EngineCounters("default-0/100", "default-0", "default", 100_000, 200_000, 5, 7, 5, 7)
CONTEXT = {"default": 1000}


def counters(prompt: int, completion: int) -> EngineCounters:
    """An engine that has counted so much since it was seen first."""
    return msgspec.structs.replace(COUNTERS, prompt=5 + prompt, completion=7 + completion)


def request(*tries: Tried, **more: object) -> Finished:
    """A request with these attempts."""
    fields: dict[str, object] = {
        "id": "j/1", "request_id": "r", "arrived": 110.0, "closed": 120.0, "tenant": "acme", "key_id": "k",
        "model": "base", "version": "", "route": "chat", "outcome": "complete",
    }  # fmt: skip
    return Finished(**(fields | more), attempts=list(tries))  # type: ignore[arg-type]


def tried(outcome: str = "complete", prompt: int = 10, completion: int = 20, **more: object) -> Tried:
    """An attempt at the engine, in the middle of its life."""
    fields: dict[str, object] = {"replica": "default-0", "engine": "default-0/100", "pool": "default", "at": 110.0}
    return Tried(**(fields | {"outcome": outcome, "took_s": 5.0, "prompt": prompt, "completion": completion} | more))  # type: ignore[arg-type]


def line(engine: EngineCounters, *requests: Finished, context: bool = True) -> Line:
    """What comes of it."""
    reckoning = Reckoning([engine], CONTEXT if context else {})
    for one in requests:
        reckoning.add(one)
    return reckoning.lines()[0]


def rests(found: Line) -> tuple[str, int, int]:
    """The verdict, and what is left."""
    return found.verdict, found.prompt_rest, found.completion_rest


def test_requests_that_are_over_explain_every_token() -> None:
    """What an engine had counted before it was seen first does not matter, and the rest is there to the token."""
    found = line(counters(30, 60), *[request(tried())] * 3)
    assert rests(found) == ("exact", 0, 0)
    assert found.shares["over"].attempts == 3
    assert (found.prompt, found.completion) == (30, 60)


@pytest.mark.parametrize(
    "prompt, completion, verdict",
    [
        (31, 60, ("unexplained", 1, 0)),
        (30, 65, ("unexplained", 0, 5)),
        (30, 59, ("unexplained", 0, -1)),
        (29, 60, ("unexplained", -1, 0)),
    ],
)
def test_one_token_more_or_less_is_seen(prompt: int, completion: int, verdict: tuple[str, int, int]) -> None:
    """Requests that came by another way, or tokens that no engine has made, are left to explain."""
    found = line(counters(prompt, completion), *[request(tried())] * 3)
    assert rests(found) == verdict
    assert not found.settled


@pytest.mark.parametrize(
    "outcome, kind", [("client_gone", "left"), ("stalled", "failed"), ("stopped", "failed"), (CRASHED, "crashed")]
)
def test_an_engine_may_go_on_when_nobody_reads(outcome: str, kind: str) -> None:
    """It has counted what was read at least, and what the context allows at most; of the prompt perhaps nothing."""
    broken = request(tried(outcome), outcome=outcome, estimated=True)
    for prompt, completion in ((0, 20), (10, 25), (296, 1000)):
        found = line(counters(prompt, completion), broken)
        assert rests(found) == ("explained", 0, 0)
    assert found.shares[kind].completion == Bounds(20, 1000)
    assert rests(line(counters(10, 1001), broken)) == ("unexplained", 0, 1)
    assert rests(line(counters(10, 19), broken)) == ("unexplained", 0, -1)


def test_without_a_known_context_nothing_is_too_much() -> None:
    """Then nobody can say how far an engine goes on, and that is said."""
    broken = request(tried("client_gone"), outcome="client_gone", estimated=True)
    found = line(counters(10, 10**6), broken, context=False)
    assert rests(found) == ("explained", 0, 0)
    assert found.shares["left"].completion == Bounds(20, None)


@pytest.mark.parametrize("outcome", ["refused", "unreachable"])
def test_what_did_not_begin_was_not_counted(outcome: str) -> None:
    """An engine counts nothing of what it has refused, or never got."""
    found = line(counters(0, 0), request(tried(outcome, completion=0), outcome=outcome))
    assert rests(found) == ("explained", 0, 0)


def test_a_request_that_moved_is_within_bounds() -> None:
    """Its first engine may have made more than was read, and its last one some of that again."""
    first, last = tried("dead", 10, 8), tried(prompt=18, completion=12)
    assert rests(line(counters(28, 20), request(first, last))) == ("explained", 0, 0)
    anew = tried("unavailable", 10, 0), tried(prompt=10, completion=20)
    found = line(counters(10, 20), request(*anew))
    assert found.shares["over"].attempts == 1
    assert rests(found) == ("explained", 0, 0)


@pytest.mark.parametrize("at, took", [(95.0, 6.0), (198.0, 2.5), (200.5, 0.2)])
def test_the_edges_of_what_was_seen(at: float, took: float) -> None:
    """What was under way when the engine was asked first or last has been counted before, after, or in part."""
    edge = request(tried(at=at, took_s=took))
    for prompt, completion in ((0, 0), (10, 7), (10, 20)):
        assert rests(line(counters(prompt, completion), edge)) == ("explained", 0, 0)
    assert rests(line(counters(11, 20), edge)) == ("unexplained", 1, 0)


@pytest.mark.parametrize("at, replica", [(80.0, "default-0"), (202.0, "default-0"), (110.0, "default-1")])
def test_other_times_and_replicas_are_of_no_concern(at: float, replica: str) -> None:
    """What was done before the engine was seen, after it was asked, or elsewhere explains nothing."""
    found = line(counters(10, 20), request(tried(at=at, replica=replica)))
    assert rests(found) == ("unexplained", 10, 20)
    assert found.shares == {}


def test_what_is_under_way_may_be_counted_already() -> None:
    """Of a request that is not over an engine can have counted anything up to the context."""
    reckoning = Reckoning([counters(10, 500)], CONTEXT)
    reckoning.add(request(tried("", took_s=0.0)), under_way=True)
    (found,) = reckoning.lines()
    assert rests(found) == ("explained", 0, 0)
    assert found.shares["under_way"].completion == Bounds(0, 1000)


def test_engines_that_do_not_count_cached_tokens() -> None:
    """A prompt that is missing by no more than what was cached is explained by that."""
    found = line(counters(6, 20), request(tried(), cached=4))
    assert rests(found) == ("cached", -4, 0)
    assert found.settled
    assert rests(line(counters(5, 20), request(tried(), cached=4))) == ("unexplained", -5, 0)


def test_days_that_were_added_up_cannot_be_told() -> None:
    """Where the requests of an engine's first days are gone, nothing is concluded."""
    found = Reckoning([counters(10, 20)], CONTEXT, added_up=0).lines()[0]
    assert found.verdict == "added_up"
    assert found.settled
