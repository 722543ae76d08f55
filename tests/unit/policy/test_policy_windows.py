"""What counts within a sliding minute."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy import Window

SPAN_S = 5
STEPS = st.lists(st.tuples(st.floats(0, 4), st.integers(0, 9), st.integers(-3, 9)), max_size=40)


class Log:
    """Every event, kept for ever: what a window should say."""

    def __init__(self) -> None:
        self.events: list[list[float]] = []

    def within(self, now: float, span_s: float) -> float:
        """What came in the last `span_s` seconds."""
        return sum(amount for at, amount in self.events if at > now - span_s)


@given(STEPS)
def test_a_window_counts_at_least_its_span_and_at_most_a_second_more(steps: list[tuple[float, int, int]]) -> None:
    """Nothing is forgotten before its time, nothing counts more than a second too long, corrections included."""
    window, log, now = Window(SPAN_S), Log(), 100.0
    cells = []
    for wait_s, amount, correction in steps:
        now += wait_s
        cells.append(window.add(now, amount))
        log.events.append([now, amount])
        which = correction % len(cells)
        by = max(correction, -int(log.events[which][1]))
        window.correct(cells[which], by)
        log.events[which][1] += by
        assert log.within(now, SPAN_S) <= window.total(now) <= log.within(now, SPAN_S + 1.001)


@given(STEPS, st.integers(0, 30))
def test_waiting_as_long_as_it_says_is_enough_and_not_too_long(steps: list[tuple[float, int, int]], room: int) -> None:
    """After the wait no more than the room counts, and a moment before it still does."""
    window, now = Window(SPAN_S), 100.0
    for wait_s, amount, _ in steps:
        now += wait_s
        window.add(now, amount)
    wait_s = window.wait_s(now, room)
    if wait_s:
        assert window.total(now) > room
        assert window.total(now + wait_s - 0.001) > room
    assert window.total(now + wait_s + 0.001) <= room


def test_when_all_is_over() -> None:
    """An empty window is over now, another one when its last second is old enough."""
    window = Window(SPAN_S)
    assert window.rest_s(100.5) == 0
    window.add(100.5, 1)
    window.add(102.5, 1)
    assert window.rest_s(103.0) == 5.0
    assert window.total(108.0) == 0


def test_what_can_never_have_room() -> None:
    """A negative room is never there, however empty the window is."""
    window = Window()
    assert math.isinf(window.wait_s(0, -1))
    window.add(0, 3)
    assert math.isinf(window.wait_s(0, -1))


@given(st.floats(0, 1e6), st.integers(1, 100))
def test_a_clock_that_jumps_back_neither_locks_out_nor_opens(back_s: float, amount: int) -> None:
    """What counted goes on to count, for a span from now on and no longer."""
    window = Window(SPAN_S)
    window.add(1e6, amount)
    now = 1e6 - back_s
    assert window.total(now) == amount
    assert window.total(now + SPAN_S + 2) == 0


def test_a_correction_of_what_is_over_changes_nothing() -> None:
    """A long request's settlement does not touch what came after it."""
    window = Window(SPAN_S)
    cell = window.add(0, 7)
    window.add(10, 2)
    window.correct(cell, -7)
    assert window.total(10) == 2
