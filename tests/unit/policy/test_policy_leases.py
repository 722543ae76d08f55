"""How a limit is divided at one moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy import Want, ceiling, floor, shares

AMOUNTS = st.integers(0, 200)
WANTS = st.dictionaries(st.integers(0, 5), st.builds(Want, AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=4)


@given(AMOUNTS, WANTS)
def test_shares_never_allow_more_than_the_limit(limit: int, wants: dict[int, Want]) -> None:
    """New shares fit into the limit; so do they with old ones that may still be gone by, and with use, if those did."""
    found = shares(limit, wants)
    assert found.keys() == wants.keys()
    assert min(found.values()) >= 0
    assert sum(found.values()) <= limit
    before = sum(max(want.held, want.used) for want in wants.values())
    after = sum(max(found[index], want.held, want.used) for index, want in wants.items())
    assert after <= max(limit, before)
    held = sum(want.held for want in wants.values())
    assert sum(max(found[index], want.held) for index, want in wants.items()) <= max(limit, held)


@given(AMOUNTS, st.integers(1, 8))
def test_the_even_half(limit: int, gateways: int) -> None:
    """The floors fit into the limit, take at most half of it where each is more than one, and leave one for each."""
    least = floor(limit, gateways)
    assert least * gateways <= limit
    assert ceiling(limit, gateways) + least * (gateways - 1) == limit
    assert least >= (limit >= gateways)
    assert gateways == 1 or least <= 1 or 2 * least * gateways <= limit


@given(AMOUNTS, st.integers(1, 4), st.integers(0, 3))
def test_a_single_busy_gateway_gets_all_but_the_others_floors(limit: int, gateways: int, busy: int) -> None:
    """Once nothing is held or used elsewhere, who alone wants something has the rest."""
    busy %= gateways
    wants = {index: Want(0, 0, 500 if index == busy else 0) for index in range(gateways)}
    found = shares(limit, wants)
    if limit:
        assert found[busy] == ceiling(limit, gateways)
    assert sum(found.values()) == limit


@given(AMOUNTS, st.integers(1, 4))
def test_without_demand_shares_are_equal(limit: int, gateways: int) -> None:
    """They differ by one at most, the lowest have more, and nothing is left over."""
    found = list(shares(limit, {index: Want() for index in range(gateways)}).values())
    assert sum(found) == limit
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    "wants, expected",
    [
        ((Want(50, 50, 100), Want(50, 0, 0)), (50, 25)),
        ((Want(50, 50, 100), Want(25, 0, 0)), (75, 25)),
        ((Want(50, 50, 100), Want(25, 40, 0)), (60, 25)),
        ((Want(75, 75, 100), Want(25, 25, 100)), (50, 25)),
        ((Want(50, 60, 100), Want(25, 60, 0)), (60, 25)),
    ],
    ids=["not before it was given up", "then", "as far as it was not used", "lower first", "over the limit already"],
)
def test_a_share_grows_by_what_another_has_given_up(wants: tuple[Want, Want], expected: tuple[int, int]) -> None:
    """Of 100 for two gateways, what is lowered is lowered at once, and what grows has to wait for it."""
    assert tuple(shares(100, dict(enumerate(wants))).values()) == expected


def test_use_that_ends_makes_no_room_twice() -> None:
    """A gateway that uses far more than a lowered limit does not get for that what the other one still holds."""
    assert shares(3, {0: Want(1, 29, 29), 1: Want(2, 9, 9)}) == {0: 1, 1: 1}


def test_nobody_has_nothing() -> None:
    """Without gateways there are no shares."""
    assert shares(10, {}) == {}
