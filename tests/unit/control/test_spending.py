"""The tokens of a day, and the money of a month, are counted once, whatever happens in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuneplex.control.spending import Ledger
from tuneplex.records import Counted, Spending
from tuneplex.types import Spent, Used

DAY, MONTH = "tokens_per_day", "money_per_month"
TODAY = 20_000
THIS_MONTH = 657
NOW = {DAY: TODAY, MONTH: THIS_MONTH}


def used(tokens: int, day: int = TODAY) -> dict[str, Used]:
    """What a process reports of one subject."""
    return {"tenant acme": Used(spent={DAY: Spent(day, tokens)})}


def today(ledger: Ledger) -> dict[str, int]:
    """What it has counted of today's tokens."""
    return ledger.spent(NOW)[DAY]


def test_processes_add_up() -> None:
    """A process counts from its own start, so the sum is over all processes, also those that are gone."""
    ledger = Ledger()
    ledger.heard("a", used(5))
    ledger.heard("b", used(7))
    ledger.heard("a", used(6))
    ledger.heard("c", used(1))
    assert today(ledger) == {"tenant acme": 14}


def test_a_reservation_that_was_too_large_is_given_back() -> None:
    """A process may count less than before: what a request reserved is replaced by what it took."""
    ledger = Ledger()
    ledger.heard("a", used(500))
    ledger.saved(ledger.unsaved())
    ledger.heard("a", used(20))
    assert today(ledger) == {"tenant acme": 20}
    assert ledger.unsaved() == {(DAY, TODAY, "tenant acme", "a"): 20}


def test_what_is_stored_counts_once() -> None:
    """What the store holds of a living process is older than what it says; of others it is all that is known."""
    ledger = Ledger()
    ledger.heard("a", used(30))
    assert not ledger.is_loaded(DAY, TODAY)
    ledger.load(DAY, TODAY, {"tenant acme": {"a": 20, "gone": 4}, "model sql": {"gone": 1}})
    assert ledger.is_loaded(DAY, TODAY)
    assert today(ledger) == {"tenant acme": 34, "model sql": 1}
    ledger.heard("a", used(31))
    assert today(ledger)["tenant acme"] == 35


def test_what_was_counted_while_saving_is_saved_next() -> None:
    """Only what was written counts as saved."""
    ledger = Ledger()
    ledger.heard("a", used(5))
    written = ledger.unsaved()
    ledger.heard("a", used(6))
    ledger.saved(written)
    assert ledger.unsaved() == {(DAY, TODAY, "tenant acme", "a"): 6}
    ledger.saved(ledger.unsaved())
    assert ledger.unsaved() == {}


def test_a_new_day_begins_at_nothing() -> None:
    """Yesterday is let go of once the store holds it, and does not count today."""
    ledger = Ledger()
    ledger.heard("a", used(5, TODAY - 1))
    ledger.heard("b", used(0))
    ledger.forget(NOW)
    assert ledger.unsaved() == {(DAY, TODAY - 1, "tenant acme", "a"): 5}
    assert today(ledger) == {"tenant acme": 0}
    ledger.heard("a", used(2))
    ledger.saved(ledger.unsaved())
    ledger.forget(NOW)
    assert (ledger.spent({DAY: TODAY - 1}), today(ledger)) == ({DAY: {}}, {"tenant acme": 2})


def test_a_clock_that_goes_back_finds_the_day_in_the_store() -> None:
    """A day that was let go of is asked for again."""
    ledger = Ledger()
    ledger.load(DAY, TODAY, {"tenant acme": {"a": 3}})
    ledger.forget({DAY: TODAY + 1, MONTH: THIS_MONTH})
    assert not ledger.is_loaded(DAY, TODAY)
    ledger.load(DAY, TODAY, {"tenant acme": {"a": 3}})
    assert today(ledger) == {"tenant acme": 3}


class Store:
    """Keeps rows; a write is done even when it is not known to be."""

    def __init__(self) -> None:
        self.rows: dict[Counted, int] = {}

    def day(self) -> Spending:
        """All rows."""
        found: Spending = {}
        for (_kind, _day, subject, process), tokens in self.rows.items():
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
    store, ledger = Store(), Ledger()
    ledger.load(DAY, TODAY, store.day())
    counts, starts, expected = [0, 0], [0, 0], {}
    for what, gateway, tokens in steps:
        process = f"{gateway}-{starts[gateway]}"
        if what == "report":
            counts[gateway] += tokens
            ledger.heard(process, used(counts[gateway]))
            expected[process] = counts[gateway]
        elif what == "gateway":
            starts[gateway] += 1
            counts[gateway] = 0
        else:
            written = ledger.unsaved()
            store.rows.update(written)
            if what == "write":
                ledger.saved(written)
        if what == "control":  # it dies after a write, and its successor hears those that live
            ledger = Ledger()
            for at in (0, 1):
                ledger.heard(f"{at}-{starts[at]}", used(counts[at]))
            ledger.load(DAY, TODAY, store.day())
        assert today(ledger).get("tenant acme", 0) == sum(expected.values())
