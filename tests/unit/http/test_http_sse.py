"""Events are cut out of a stream at their borders, however it arrives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.http import EventFramer, EventTooLargeError

EVENTS = st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"")), max_size=8)


@given(events=EVENTS, crlf=st.booleans(), cuts=st.lists(st.integers(0, 200), max_size=10))
def test_any_split_gives_the_same_events(*, events: list[bytes], crlf: bool, cuts: list[int]) -> None:
    """Every piece that comes out ends with a whole event, and nothing is lost."""
    border = b"\r\n\r\n" if crlf else b"\n\n"
    stream = b"".join(b"data: " + event + border for event in events)
    borders = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    framer = EventFramer()
    out = [framer.feed(stream[a:b]) for a, b in itertools.pairwise(borders)]
    assert b"".join(out) == stream
    assert all(piece.endswith(border) for piece in out if piece)
    assert not framer.held


def test_half_an_event_is_kept() -> None:
    """What is not complete does not come out."""
    framer = EventFramer()
    assert framer.feed(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert framer.held == b"data: 2"
    assert framer.feed(b"\n\n") == b"data: 2\n\n"


def test_an_event_has_a_largest_size() -> None:
    """A server that never ends its event cannot take all memory."""
    framer = EventFramer(limit=100)
    framer.feed(b"x" * 100)
    with pytest.raises(EventTooLargeError):
        framer.feed(b"x")
