"""Priorities and deadlines, as headers say them."""

from __future__ import annotations

import math

import pytest

from tuneplex.errors import BadRequest
from tuneplex.gateway.urgency import SHARES, Priority, read_deadline, read_priority


def test_without_headers_a_request_is_normal_and_has_all_time() -> None:
    """Nobody has to say anything."""
    assert read_priority({}) is Priority.NORMAL
    assert read_deadline({}, 100.0) == math.inf


@pytest.mark.parametrize(
    "text, priority", [(b"high", Priority.HIGH), (b" Normal", Priority.NORMAL), (b"LOW", Priority.LOW)]
)
def test_each_priority(text: bytes, priority: Priority) -> None:
    """The three words, in any case; a higher one has the larger share."""
    assert read_priority({b"x-tuneplex-priority": text}) is priority
    assert SHARES[Priority.HIGH] > SHARES[Priority.NORMAL] > SHARES[Priority.LOW] > 0


@pytest.mark.parametrize("text, seconds", [(b"30s", 30), (b"1500ms", 1.5), (b"30", 30), (b"2m", 120), (b"0.5", 0.5)])
def test_a_deadline_counts_from_arrival(text: bytes, seconds: float) -> None:
    """It is a duration, with or without a unit."""
    assert read_deadline({b"x-tuneplex-deadline": text}, 100.0) == 100.0 + seconds


@pytest.mark.parametrize("text", [b"", b"urgent", b"1", b"high, low", b"\xff"])
def test_other_priorities_are_refused_by_name(text: bytes) -> None:
    """The message names the header and what it may say."""
    with pytest.raises(BadRequest, match=r"x-tuneplex-priority.*high, normal or low"):
        read_priority({b"x-tuneplex-priority": text})


@pytest.mark.parametrize("text", [b"", b"soon", b"0", b"0s", b"-1", b"1e3", b"nan", b"inf", b"30 parsecs", b"\xff"])
def test_other_deadlines_are_refused_by_name(text: bytes) -> None:
    """A deadline that is no duration, or none at all, is a mistake of the client's."""
    with pytest.raises(BadRequest, match=r"x-tuneplex-deadline.*duration"):
        read_deadline({b"x-tuneplex-deadline": text}, 100.0)
