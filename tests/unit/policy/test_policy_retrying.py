"""What follows from the end of a try, and how many tries there may be."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.engines.openai.dialect import OpenAIDialect
from tuneplex.policy import Budget, End, Verdict, Word, backoff_s, read_retry_after, verdict
from tuneplex.types import Retries

WELL, FAILED, DOUBTFUL, NOTHING = Word.WELL, Word.FAILED, Word.DOUBTFUL, Word.NOTHING
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
TOO_LONG = "This model's maximum context length is 2048 tokens. However, your request has 4000 input tokens."
UNSURE = "The decoder prompt (length 99) is longer than the maximum model length of 64."


def error(message: str, status: int, kind: str = "InternalServerError") -> bytes:
    """An error in vLLM's shape."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


# --- what follows

BY_END = [
    # how it ended, what it says of the replica, again?, the same one?, a death?
    (End.COMPLETE, WELL, False, False, False),
    (End.UNREACHABLE, FAILED, True, True, False),
    (End.BROKEN, FAILED, True, True, True),
    (End.SILENT, FAILED, True, False, False),
    (End.STALLED, FAILED, True, False, False),
    (End.INVALID, FAILED, True, False, False),
    (End.DEAD, FAILED, True, False, True),
    (End.BUSY, NOTHING, True, True, False),
    (End.UNAVAILABLE, FAILED, True, True, False),
    (End.FAILED, DOUBTFUL, False, False, False),
    (End.REFUSED, NOTHING, False, False, False),
    (End.STOPPED, NOTHING, False, False, False),
]


@pytest.mark.parametrize("end, word, again, same, died", BY_END)
def test_each_end_has_its_verdict(end: End, word: Word, *, again: bool, same: bool, died: bool) -> None:
    """Only what cannot be the request's fault is sent again, and only the replica's own failures count against it."""
    found = verdict(end)
    assert (found.word, found.again, found.same, found.died) == (word, again, same, died)


def test_no_end_is_without_a_verdict() -> None:
    """The table above has all of them."""
    assert [end for end, *_ in BY_END] == list(End)


BY_STATUS = [
    # status, body, how the try ended, again?, what it says of the replica
    (400, error("Invalid value.", 400, "BadRequestError"), End.REFUSED, False, NOTHING),
    (400, error(TOO_LONG, 400, "BadRequestError"), End.REFUSED, False, NOTHING),
    (400, error(DEAD, 400, "BadRequestError"), End.REFUSED, False, NOTHING),
    (401, b'{"error": "Unauthorized"}', End.REFUSED, False, NOTHING),
    (403, b"", End.REFUSED, False, NOTHING),
    (404, error("The model `x` does not exist.", 404, "NotFoundError"), End.REFUSED, False, NOTHING),
    (405, b'{"detail": "Method Not Allowed"}', End.REFUSED, False, NOTHING),
    (408, b"", End.REFUSED, False, NOTHING),
    (409, b"{}", End.REFUSED, False, NOTHING),
    (413, b"<html>", End.REFUSED, False, NOTHING),
    (422, b'{"detail": []}', End.REFUSED, False, NOTHING),
    (429, error("slow down", 429), End.BUSY, True, NOTHING),
    (429, b"", End.BUSY, True, NOTHING),
    (500, error("", 500), End.FAILED, False, DOUBTFUL),
    (500, error("CUDA error: an illegal memory access", 500), End.FAILED, False, DOUBTFUL),
    (500, b"Internal Server Error", End.FAILED, False, DOUBTFUL),
    (500, error(DEAD, 500), End.DEAD, True, FAILED),
    (500, error(TOO_LONG, 500), End.REFUSED, False, NOTHING),
    (500, error(UNSURE, 500), End.REFUSED, False, NOTHING),
    (500, msgspec.json.encode({"detail": TOO_LONG}), End.REFUSED, False, NOTHING),
    (501, error("not here", 501, "NotImplementedError"), End.REFUSED, False, NOTHING),
    (502, b"<html>Bad Gateway</html>", End.UNAVAILABLE, True, FAILED),
    (503, b"", End.UNAVAILABLE, True, FAILED),
    (503, error("KV transfer failed", 503, "ServiceUnavailableError"), End.UNAVAILABLE, True, FAILED),
    (504, b"", End.UNAVAILABLE, True, FAILED),
    (529, error("overloaded", 529), End.FAILED, False, DOUBTFUL),
    (302, b"", End.FAILED, False, DOUBTFUL),
]


@pytest.mark.parametrize("status, body, end, again, word", BY_STATUS)
def test_each_error_reply_has_its_verdict(status: int, body: bytes, end: End, word: Word, *, again: bool) -> None:
    """A 4xx, a plain 500 and a prompt that is too long are not sent again; an engine that ends, or cannot now, is."""
    found = OpenAIDialect().error_end(status, body)
    assert (found, verdict(found).again, verdict(found).word) == (end, again, word)


@pytest.mark.parametrize(
    "event, end",
    [
        (error(DEAD, 500), End.DEAD),
        (error("Internal server error", 500), End.FAILED),
        (error(TOO_LONG, 400, "BadRequestError"), End.REFUSED),
        (error("KV transfer failed", 503), End.UNAVAILABLE),
        (b'{"object": "error", "message": "odd", "code": "x"}', End.FAILED),
        (b"not JSON", End.FAILED),
    ],
)
def test_error_events_are_read_like_error_replies(event: bytes, end: End) -> None:
    """What a stream's error event says leads to the same end as a reply would."""
    assert OpenAIDialect().stream_end(b"data: " + event + b"\n\ndata: [DONE]\n\n") is end


@pytest.mark.parametrize("end", list(End))
def test_only_a_replica_that_cannot_now_may_ask_for_time(end: End) -> None:
    """With `retry-after` a 429 and a 503 hold the replica and are no failure; elsewhere the header changes nothing."""
    found = verdict(end, 7.0)
    if end in {End.BUSY, End.UNAVAILABLE}:
        assert found == Verdict(NOTHING, again=True, same=True, hold_s=7.0)
    else:
        assert found == verdict(end)


def test_a_busy_replica_that_does_not_say_for_how_long_has_a_moment() -> None:
    """A 429 without `retry-after` holds it for a second."""
    assert verdict(End.BUSY).hold_s == 1.0


# --- when

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    "value, seconds",
    [
        (b"2", 2.0),
        (b" 0 ", 0.0),
        (b"1.5", 1.5),
        (b"9" * 400, math.inf),
        (b"Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        (b"Tue, 14 Nov 2023 22:13:50 -0000", 30.0),
        (b"Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        (b"", None),
        (b"-1", None),
        (b"soon", None),
        (b"nan", None),
        (b"\xb2", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: bytes, seconds: float | None) -> None:
    """Both forms of RFC 9110 are understood, a date that has passed is now, and everything else is nothing."""
    assert read_retry_after(value, NOW) == seconds


@given(st.binary(max_size=60))
def test_no_header_is_too_odd_to_read(value: bytes) -> None:
    """Any bytes give a time from now on, or none."""
    seconds = read_retry_after(value, NOW)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize("tried, most_s", [(1, 0.05), (2, 0.1), (3, 0.2), (6, 1.6), (7, 2.0), (1000, 2.0)])
def test_the_same_replica_is_given_time(tried: int, most_s: float) -> None:
    """The wait is anything between nothing and twice as much for each try, never more than two seconds."""
    assert backoff_s(tried, lambda: 1.0) == pytest.approx(most_s)
    assert backoff_s(tried, lambda: 0.5) == pytest.approx(most_s / 2)
    assert backoff_s(tried, lambda: 0.0) == 0.0


# --- the budget

SETTINGS = Retries(share=0.2, per_second=2.0)  # a burst of 40


def taken(budget: Budget, now: float, wanted: int) -> int:
    """How many of so many are given."""
    return sum(budget.take(now) for _ in range(wanted))


def test_an_outage_is_not_multiplied() -> None:
    """When every request wants to go again there is the burst once, and from then on only the share and the rate."""
    budget, given_to, seconds, per_second = Budget(SETTINGS, 0.0), 0, 60, 100
    for second in range(1, seconds + 1):
        budget.requests += per_second
        given_to += taken(budget, float(second), 3 * per_second)
    assert given_to == 40 + (seconds - 1) * (2 + 20)  # what the first second brings finds the budget full


def test_a_quiet_time_saves_no_more_than_the_burst() -> None:
    """After an hour of requests without failures there is one burst, not an hour's share."""
    budget = Budget(SETTINGS, 0.0)
    budget.requests += 1_000_000
    assert taken(budget, 3600.0, 1000) == 40


@pytest.mark.parametrize("share, per_second, most", [(0.0, 0.0, 0), (0.0, 0.01, 1), (0.001, 0.0, 1), (0.2, 10.0, 120)])
def test_the_burst_follows_from_the_settings(share: float, per_second: float, most: int) -> None:
    """It is what ten seconds and a hundred requests bring, and one where that is less; with both at 0 nothing goes."""
    assert taken(Budget(Retries(share=share, per_second=per_second), 0.0), 0.0, 1000) == most


def test_settings_of_the_budget_may_change() -> None:
    """What was saved beyond a smaller burst is lost at once; a larger one fills as time goes by."""
    budget = Budget(SETTINGS, 0.0)
    budget.settings = Retries(share=0.0, per_second=1.0)
    assert taken(budget, 0.0, 100) == 10
    budget.settings = SETTINGS
    assert taken(budget, 0.0, 100) == 0
    assert taken(budget, 5.0, 100) == 10


STEPS = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=40)


@given(STEPS, st.floats(0, 1), st.floats(0, 20), st.data())
def test_no_interval_gives_more_than_its_bound(
    steps: list[tuple[float, int, int]], share: float, per_second: float, data: st.DataObject
) -> None:
    """Over any T seconds with N requests there are at most `burst + per_second * T + share * N` of them."""
    budget, now = Budget(Retries(share=share, per_second=per_second), 0.0), 0.0
    log = []
    for wait_s, requests, wanted in steps:
        now += wait_s
        budget.requests += requests
        log.append((now, requests, taken(budget, now, wanted)))
    first = data.draw(st.integers(0, len(log) - 1))
    last = data.draw(st.integers(first, len(log) - 1))
    span_s = log[last][0] - log[first][0]
    requests = sum(requests for _, requests, _ in log[first : last + 1])
    given_to = sum(given_to for _, _, given_to in log[first : last + 1])
    assert given_to <= budget.burst + per_second * span_s + share * requests + 1e-6
