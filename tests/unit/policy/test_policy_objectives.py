"""Error budgets, by arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy import NOTHING, Service, availability, burnt, together

counts = st.integers(0, 10**9)
targets = st.floats(50, 99.9999)


@pytest.mark.parametrize(
    "good, bad, target, available, used",
    [
        (999, 1, 99.9, 99.9, 1.0),
        (9995, 5, 99.9, 99.95, 0.5),
        (90, 10, 95.0, 90.0, 2.0),
        (5, 0, 99.9, 100.0, 0.0),
        (0, 4, 50.0, 0.0, 2.0),
    ],
)
def test_budget(good: int, bad: int, target: float, available: float, used: float) -> None:
    """Availability is the served share, and the budget is used by as much as was bad of what may be."""
    service = Service.of(good, bad, target)
    assert availability(service) == pytest.approx(available)
    assert burnt(service) == pytest.approx(used)


def test_where_nobody_asked_nothing_is_known() -> None:
    """Without requests there is neither an availability nor a rate."""
    assert (availability(NOTHING), burnt(NOTHING)) == (None, None)
    assert together([]) == NOTHING


@given(st.lists(st.tuples(counts, counts, targets), min_size=1, max_size=5))
def test_several_make_one(parts: list[tuple[int, int, float]]) -> None:
    """Together, all requests count, and each is allowed to be bad by the target of its own."""
    services = [Service.of(*part) for part in parts]
    whole = together(services)
    assert whole.total == sum(good + bad for good, bad, _ in parts)
    assert whole.allowed == pytest.approx(sum(one.allowed for one in services))
    rates = [rate for one in services if (rate := burnt(one)) is not None]
    found = burnt(whole)
    assert (found is None) == (not rates)
    if found is not None:
        assert min(rates) * 0.999 <= found <= max(rates) * 1.001
