"""How gateways share the places of a replica."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy import local_weights, places

DEMAND = st.dictionaries(
    st.integers(0, 15),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 5000), max_size=6),
    min_size=1,
    max_size=16,
)
WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 1000))


def test_a_tenant_at_one_gateway_only_gets_as_much_as_one_that_is_everywhere() -> None:
    """The gateway where it is has more places, and it has more weight there than the other one."""
    demand = {0: {"everywhere": 50.0}, 1: {"everywhere": 50.0, "here": 100.0}}
    assert places(100, demand, {}) == {0: 25, 1: 75}
    assert local_weights(demand, {}) == {0: {"everywhere": 0.5}, 1: {"everywhere": 0.5, "here": 1.0}}


def test_who_wants_little_gets_it_and_the_others_share_the_rest_by_weight() -> None:
    """Places are filled like vessels that are connected."""
    demand = {0: {"little": 10.0, "double": 500.0}, 1: {"single": 500.0}}
    assert places(100, demand, {"double": 2}) == {0: 70, 1: 30}


def test_what_nobody_wants_is_spread_evenly() -> None:
    """So that a gateway where nothing was asked can begin at once."""
    assert places(100, {0: {"a": 20.0}, 1: {}, 2: {}, 3: {}}, {}) == {0: 40, 1: 20, 2: 20, 3: 20}


def test_every_gateway_has_a_place_even_where_there_are_too_few() -> None:
    """A gateway without any could serve nobody until the next division."""
    assert places(2, {0: {"a": 9.0}, 1: {}, 2: {}}, {}) == {0: 1, 1: 1, 2: 1}


@given(st.integers(1, 5000), DEMAND, WEIGHTS)
def test_places_come_out_even(capacity: int, demand: dict[int, dict[str, float]], weights: dict[str, int]) -> None:
    """Together they are the capacity, each gateway has at least one, whoever wants what."""
    found = places(capacity, demand, weights)
    assert found.keys() == demand.keys()
    assert min(found.values()) >= 1
    assert sum(found.values()) == max(capacity, len(demand))


@given(DEMAND, WEIGHTS)
def test_local_weights_add_up_to_the_whole(demand: dict[int, dict[str, float]], weights: dict[str, int]) -> None:
    """A tenant's weights at all gateways together are its weight, at most a tenth more; and each is worth something."""
    found = local_weights(demand, weights)
    for name in {name for tenants in demand.values() for name, wanted in tenants.items() if wanted > 0}:
        weight = weights.get(name, 1)
        parts = [tenants[name] for tenants in found.values() if name in tenants]
        assert min(parts) >= weight * 0.0999 / len(demand)
        assert weight * 0.999 <= sum(parts) <= weight * 1.1
