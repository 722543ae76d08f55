"""Always-valid comparisons of means and of proportions."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rollout.cases import most_by_chance
from tuneplex.policy.sequential import (
    Bounds,
    Hits,
    Moments,
    evidence_above,
    evidence_below,
    mean_bounds,
    proportion_bounds,
)

values = st.lists(st.floats(-10, 10), max_size=30)
hits = st.integers(0, 3000).flatmap(lambda count: st.builds(Hits, st.just(count), st.integers(0, count)))
moments = st.builds(Moments, st.integers(2, 10**6), st.floats(-5, 5), st.floats(0, 1e6))
margins = st.floats(-0.9, 0.9)


@given(values)
def test_moments_are_those_of_the_values(some: list[float]) -> None:
    """From sums come the mean and the variance that the values have."""
    found = Moments.of(len(some), sum(some), sum(value * value for value in some))
    mean = sum(some) / len(some) if some else 0.0
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.m2 == pytest.approx(sum((value - mean) ** 2 for value in some), abs=1e-6)
    assert found.variance == pytest.approx(found.m2 / max(1, len(some) - 1))


@given(moments, moments, st.floats(0.001, 0.4))
def test_bounds_of_means_lie_around_the_difference(new: Moments, old: Moments, alpha: float) -> None:
    """The estimate is inside, whoever is compared with whom sees the same, and less doubt makes them wider."""
    bounds = mean_bounds(new, old, 0.2, alpha)
    turned = mean_bounds(old, new, 0.2, alpha)
    surer = mean_bounds(new, old, 0.2, alpha / 2)
    assert bounds.low < new.mean - old.mean < bounds.high
    assert (turned.low, turned.high) == (-bounds.high, -bounds.low)
    assert surer.low < bounds.low


def test_nothing_is_known_of_the_mean_of_one_value() -> None:
    """Fewer than two values have no bounds, on either side."""
    many = Moments(100, 1.0, 50.0)
    assert mean_bounds(many, Moments(1, 5.0, 0.0), 0.2, 0.05) == Bounds()
    assert mean_bounds(Moments(), None, 0.2, 0.05) == Bounds()


def test_equal_values_are_not_certain() -> None:
    """A variance of 0 in few values leaves the margin open, and does not in many."""
    few, many = Moments(5, 0.0, 0.0), Moments(500, 0.0, 0.0)
    assert mean_bounds(few, few, 0.2, 0.05).high > 0.2
    assert 0 < mean_bounds(many, many, 0.2, 0.05).high < 0.2


@settings(max_examples=50)
@given(hits, hits, margins, margins)
def test_evidence_goes_with_the_margin(new: Hits, old: Hits, one: float, other: float) -> None:
    """The more is allowed, the less speaks for more than that and the more for less."""
    low, high = sorted((one, other))
    assert evidence_above(new, old, low) >= evidence_above(new, old, high) - 1e-6
    assert evidence_below(new, old, low) <= evidence_below(new, old, high) + 1e-6


@pytest.mark.parametrize("rate, margin", [(0.0, 0.1), (0.02, 0.1), (0.3, 0.1), (0.5, 0.4), (0.4, -0.3)])
@pytest.mark.parametrize("above", [True, False])
def test_no_look_at_proportions_errs_more_often_than_said(rate: float, margin: float, above: bool) -> None:  # noqa: FBT001
    """Rates at the margin: the chance that the evidence ever gets there, summed over all ways it can go, is small."""
    alpha = 0.2
    evidence = evidence_above if above else evidence_below
    ever, paths = 0.0, {(0, 0): 1.0}
    for count in range(1, 17):
        after: dict[tuple[int, int], float] = {}
        for (new, old), chance in paths.items():
            for hit, more in ((1, rate + margin), (0, 1 - rate - margin)):
                for other, rest in ((1, rate), (0, 1 - rate)):
                    key = (new + hit, old + other)
                    after[key] = after.get(key, 0.0) + chance * more * rest
        paths = {}
        for (new, old), chance in after.items():
            if evidence(Hits(count, new), Hits(count, old), margin) >= -math.log(alpha):
                ever += chance
            else:
                paths[new, old] = chance
    assert ever <= alpha
    assert ever + sum(paths.values()) == pytest.approx(1.0)


def test_nothing_seen_is_no_certainty() -> None:
    """0 errors of 50 requests do not show that there are fewer than one in fifty; 0 of 2000 do."""
    old = Hits(2000, 0)
    assert proportion_bounds(Hits(50, 0), old, 0.05).high > 0.05
    assert proportion_bounds(Hits(2000, 0), old, 0.05).high < 0.01
    assert proportion_bounds(Hits(), old, 0.05).high == pytest.approx(1.0)
    assert proportion_bounds(Hits(), Hits(), 0.05) == Bounds(-1.0, 1.0)


@settings(max_examples=20)
@given(hits, hits)
def test_bounds_of_proportions_lie_around_the_difference(new: Hits, old: Hits) -> None:
    """The estimate is inside, and at each bound the evidence becomes as much as alpha asks for."""
    bounds, enough, step = proportion_bounds(new, old, 0.05), -math.log(0.05), 1e-6
    assert -1 <= bounds.low <= new.rate - old.rate <= bounds.high <= 1
    assert evidence_above(new, old, min(1.0, bounds.low + step)) <= enough
    assert bounds.low == -1 or evidence_above(new, old, max(-1.0, bounds.low - step)) >= enough
    assert evidence_below(new, old, max(-1.0, bounds.high - step)) <= enough
    assert bounds.high == 1 or evidence_below(new, old, min(1.0, bounds.high + step)) >= enough


def test_a_version_that_always_fails_is_seen_at_once() -> None:
    """Five failures of five are enough evidence for one in a hundred, where the old version has none."""
    assert evidence_above(Hits(5, 5), Hits(50, 0), 0.02) > math.log(100)
    assert evidence_above(Hits(2, 2), Hits(20, 0), 0.02) < math.log(100)


def test_no_look_at_means_errs_more_often_than_said() -> None:
    """Means that do not differ are called different in no more runs than alpha allows, looked at all the time."""
    alpha, runs = 0.2, 60
    errs = 0
    for seed in range(runs):
        chance = random.Random(seed)  # noqa: S311 - a simulation
        sums = [[0, 0.0, 0.0], [0, 0.0, 0.0]]
        for look in range(20, 300):
            for arm, pace in ((0, 1), (1, 3)):
                for _ in range(pace * 20 if look == 20 else pace):
                    value = chance.expovariate(1.0)
                    sums[arm][0] += 1
                    sums[arm][1] += value
                    sums[arm][2] += value * value
            new, old = (Moments.of(int(count), total, squares) for count, total, squares in sums)
            if mean_bounds(new, old, 0.2, alpha).low > 0:
                errs += 1
                break
    assert 0 < errs <= most_by_chance(runs, alpha)
