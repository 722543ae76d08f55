"""Which adapters keep a slot, which are read ahead, and where an engine that does not tell should have them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy.residency import Demand, demanded, grown, last_used, modelled, pins, prefetched
from tuneplex.types import Tier

NAMES = [f"a{number}" for number in range(10)]
ZIPF = Demand({name: 100 / (place + 1) for place, name in enumerate(NAMES)})


def test_a_demand_halves_each_minute() -> None:
    """What was asked for a minute ago counts half, and what was asked for long ago is forgotten."""
    demand = demanded(Demand(), {"a": 40}, 0.0)
    assert demanded(demand, {"b": 1}, 60.0).counts == {"a": pytest.approx(20), "b": 1}
    assert demanded(demand, {}, 3600.0).counts == {}


@pytest.mark.parametrize(
    "before, now, new",
    [
        ({}, {"a": 3}, {"a": 3}),
        ({"a": 3, "b": 1}, {"b": 1, "a": 5}, {"a": 2}),
        ({"a": 9}, {"a": 2}, {"a": 2}),
        ({"a": 9}, {}, {}),
    ],
)
def test_counters_that_grow(before: dict[str, int], now: dict[str, int], new: dict[str, int]) -> None:
    """What was counted between two reports is their difference, and all of it where a counter began anew."""
    assert grown(before, now) == new


def test_the_model_is_least_recently_used() -> None:
    """The last used have slots, those before them are in host memory, and the rest is on disk."""
    order = last_used(last_used((), NAMES), ["a1", "a0"])
    assert order[-2:] == ("a1", "a0")
    tiers = modelled(order, slots=2, host=5)
    assert [name for name, tier in tiers.items() if tier is Tier.DEVICE] == ["a0", "a1"]
    assert sum(tier is Tier.HOST for tier in tiers.values()) == 3
    assert tiers["a2"] is Tier.DISK


def test_the_hottest_are_pinned_up_to_half_of_the_slots() -> None:
    """Of ten adapters by Zipf's law the first two keep two of four slots; where all fit, none needs to."""
    assert pins([], ZIPF, [], NAMES, 4) == {"a0", "a1"}
    assert pins([], ZIPF, [], NAMES, 10) == set()


def test_nobody_is_hot_where_all_are_alike() -> None:
    """Among forty adapters that are asked for alike none is pinned."""
    names = [f"b{number}" for number in range(40)]
    assert pins([], Demand(dict.fromkeys(names, 5.0)), [], names, 4) == set()


def test_pins_do_not_come_and_go() -> None:
    """One that is pinned stays so until it has half of what it needed to be, or another one twice as much."""
    rest = {f"c{number}": 1.0 for number in range(94)}
    cooled, cold = Demand({**rest, "a": 5.0}), Demand({**rest, "a": 3.0})
    assert pins([], cooled, [], [*rest, "a"], 4) == set()
    assert pins([], cooled, ["a"], [*rest, "a"], 4) == {"a"}
    assert pins([], cold, ["a"], [*rest, "a"], 4) == set()
    close = Demand({**rest, "a": 20.0, "b": 30.0})
    assert pins([], close, ["a"], [*rest, "a", "b"], 3) == {"a"}
    assert pins([], Demand({**rest, "a": 20.0, "b": 50.0}), ["a"], [*rest, "a", "b"], 3) == {"b"}


def test_without_knowledge_pins_stay() -> None:
    """While nothing is known of demand, who was pinned before stays so, and nobody else is."""
    assert pins([], Demand({"a2": 3.0}), ["a3", "a4"], NAMES, 4, found=["a3"]) == {"a3"}
    assert pins([], ZIPF, ["a3"], NAMES, 4, found=["a3"]) == {"a0", "a1"}


def test_those_of_the_fleet_file_come_first() -> None:
    """Who is to have a slot for good has one whatever is asked for; hot ones get what is left of half the slots."""
    assert pins(["a9"], ZIPF, [], NAMES, 4) == {"a9", "a0"}
    assert pins(["a9", "a8", "a7"], ZIPF, ["a0"], NAMES, 4) == {"a9", "a8", "a7"}
    assert pins(["gone", "a9"], Demand(), [], NAMES, 4) == {"a9"}


@given(
    st.lists(st.sampled_from(NAMES), unique=True),
    st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1000)),
    st.lists(st.sampled_from(NAMES), unique=True),
    st.lists(st.sampled_from(NAMES), unique=True),
    st.integers(1, 8),
)
def test_a_slot_always_stays_for_others(
    always: Sequence[str], counts: dict[str, float], pinned: Sequence[str], loaded: Sequence[str], slots: int
) -> None:
    """Whatever is asked for and pinned, only loaded adapters are, and never all slots."""
    found = pins(always, Demand(counts), pinned, loaded, slots)
    assert found <= set(loaded)
    assert len(found) < slots


def test_what_waits_is_read_ahead() -> None:
    """Of the adapters that requests wait for, those on disk are, and no more than host memory holds beside slots."""
    tiers = {"a0": Tier.DEVICE, "a1": Tier.DISK, "a2": Tier.HOST, "a3": Tier.DISK, "a4": Tier.DISK, "a5": None}
    waiting = ["a5", "unknown", "a0", "a1", "a2", "a3", "a4"]
    assert prefetched(waiting, tiers, 3) == ["a1", "a3"]
    assert prefetched(waiting, tiers, 0) == []
