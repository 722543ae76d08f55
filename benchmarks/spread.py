"""Medians and how far they can be trusted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

__all__ = ["Spread", "ratio", "spread"]

_RESAMPLES = 4000
_LOW, _HIGH = 0.025, 0.975


class Spread(msgspec.Struct, frozen=True):
    """The median of the rounds, their extremes, and a 95 % interval of the median by bootstrap over rounds."""

    median: float
    min: float
    max: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of one figure over the rounds."""
    low, high = _interval(len(values), lambda rounds: median(values[index] for index in rounds))
    return Spread(median(values), min(values), max(values), low, high)


def ratio(values: Sequence[float], reference: Sequence[float]) -> Spread:
    """The spread of the ratio of two medians; rounds are drawn in pairs, since both met the same disturbance."""

    def of(rounds: Sequence[int]) -> float:
        return median(values[index] for index in rounds) / median(reference[index] for index in rounds)

    pairs = [value / other for value, other in zip(values, reference, strict=True)]
    low, high = _interval(len(values), of)
    return Spread(of(range(len(values))), min(pairs), max(pairs), low, high)


def _interval(count: int, figure: Callable[[Sequence[int]], float]) -> tuple[float, float]:
    """The bootstrap's 95 % interval; the same rounds always give the same interval."""
    draw = random.Random(count)  # noqa: S311 - no secret is made here
    figures = sorted(figure(draw.choices(range(count), k=count)) for _ in range(_RESAMPLES))
    return figures[int(_LOW * _RESAMPLES)], figures[int(_HIGH * _RESAMPLES) - 1]
