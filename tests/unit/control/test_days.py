"""The tokens of a day are counted once, whatever happens in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuneplex.control.days import Days
from tuneplex.records import Counted, Day
from tuneplex.types import Used

TODAY = 20_000


def used(tokens: int, day: int = TODAY) -> dict[str, Used]:
    """What a process reports of one subject."""
    return {"tenant acme": Used(day=day, day_tokens=tokens)}


def test_processes_add_up() -> None:
    """A process counts from its own start, so the sum is over all processes, also those that are gone."""
    days = Days()
    days.heard("a", used(5))
    days.heard("b", used(7))
    days.heard("a", used(6))
    days.heard("c", used(1))
    assert days.spent(TODAY) == {"tenant acme": 14}


def test_a_reservation_that_was_too_large_is_given_back() -> None:
    """A process may count less than before: what a request reserved is replaced by what it took."""
    days = Days()
    days.heard("a", used(500))
    days.saved(days.unsaved())
    days.heard("a", used(20))
    assert days.spent(TODAY) == {"tenant acme": 20}
    assert days.unsaved() == {("tenant acme", TODAY, "a"): 20}


def test_what_is_stored_counts_once() -> None:
    """What the store holds of a living process is older than what it says; of others it is all that is known."""
    days = Days()
    days.heard("a", used(30))
    assert not days.is_loaded(TODAY)
    days.load(TODAY, {"tenant acme": {"a": 20, "gone": 4}, "model sql": {"gone": 1}})
    assert days.is_loaded(TODAY)
    assert days.spent(TODAY) == {"tenant acme": 34, "model sql": 1}
    days.heard("a", used(31))
    assert days.spent(TODAY)["tenant acme"] == 35


def test_what_was_counted_while_saving_is_saved_next() -> None:
    """Only what was written counts as saved."""
    days = Days()
    days.heard("a", used(5))
    written = days.unsaved()
    days.heard("a", used(6))
    days.saved(written)
    assert days.unsaved() == {("tenant acme", TODAY, "a"): 6}
    days.saved(days.unsaved())
    assert days.unsaved() == {}


def test_a_new_day_begins_at_nothing() -> None:
    """Yesterday is let go of once the store holds it, and does not count today."""
    days = Days()
    days.heard("a", used(5, TODAY - 1))
    days.heard("b", used(0))
    days.forget(TODAY)
    assert days.unsaved() == {("tenant acme", TODAY - 1, "a"): 5}
    assert days.spent(TODAY) == {"tenant acme": 0}
    days.heard("a", used(2))
    days.saved(days.unsaved())
    days.forget(TODAY)
    assert (days.spent(TODAY - 1), days.spent(TODAY)) == ({}, {"tenant acme": 2})


def test_a_clock_that_goes_back_finds_the_day_in_the_store() -> None:
    """A day that was let go of is asked for again."""
    days = Days()
    days.load(TODAY, {"tenant acme": {"a": 3}})
    days.forget(TODAY + 1)
    assert not days.is_loaded(TODAY)
    days.load(TODAY, {"tenant acme": {"a": 3}})
    assert days.spent(TODAY) == {"tenant acme": 3}


class Store:
    """Keeps rows; a write is done even when it is not known to be."""

    def __init__(self) -> None:
        self.rows: dict[Counted, int] = {}

    def day(self) -> Day:
        """All rows."""
        found: Day = {}
        for (subject, _day, process), tokens in self.rows.items():
            found.setdefault(subject, {})[process] = tokens
        return found


steps = st.lists(
    st.tuples(
        st.sampled_from(["report", "write", "unsure", "control", "gateway"]), st.integers(0, 1), st.integers(1, 9)
    )
)


@given(steps)
def test_any_order_counts_each_token_once(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is reported, written twice, or started again: the sum is what was used, as far as it was reported."""
    store, days = Store(), Days()
    days.load(TODAY, store.day())
    counts, starts, expected = [0, 0], [0, 0], {}
    for what, gateway, tokens in steps:
        process = f"{gateway}-{starts[gateway]}"
        if what == "report":
            counts[gateway] += tokens
            days.heard(process, used(counts[gateway]))
            expected[process] = counts[gateway]
        elif what == "gateway":
            starts[gateway] += 1
            counts[gateway] = 0
        else:
            written = days.unsaved()
            store.rows.update(written)
            if what == "write":
                days.saved(written)
        if what == "control":  # it dies after a write, and its successor hears those that live
            days = Days()
            for at in (0, 1):
                days.heard(f"{at}-{starts[at]}", used(counts[at]))
            days.load(TODAY, store.day())
        assert days.spent(TODAY).get("tenant acme", 0) == sum(expected.values())
