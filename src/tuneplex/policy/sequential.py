"""Comparing two versions while the figures still come in: tests that may be looked at after every request.

A test of the usual kind holds its error rate if it is looked at once. These are *always valid*: the chance that they
are ever wrong, over all looks together, is at most what was asked for, so whoever looks may stop at any time.

Means are compared by the mixture sequential probability ratio test (mSPRT; Robbins 1970, and for two arms Johari,
Pekelis and Walsh 2015), one-sided as in Howard, Ramdas, McAuliffe and Sekhon (2021), with estimated variances as in
Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2021): exact in the limit of many values, not for a handful.

Proportions may be rare, and the variance of "0 of 50" is not 0. They are compared by beta-binomial mixtures (Robbins
1970) over the best that the other hypothesis can say of the same counts (Wasserman, Ramdas and Balakrishnan 2020):
exact for any counts, from the first request on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

__all__ = ["Bounds", "Hits", "Moments", "evidence_above", "evidence_below", "mean_bounds", "proportion_bounds"]

_FEWEST = 2  # a variance needs as many
_UNSEEN = 4.0  # how many margins off a value is assumed to lie that has not been seen yet
# What rates are bet on: Jeffreys' prior knows none; the other one thinks of a percent, where errors mostly are, and
# makes up its mind there after half as many requests.
_PRIORS = ((0.5, 0.5), (0.5, 50.0))
_HALVINGS = 32  # of an interval, down to a billionth of it


class Moments(msgspec.Struct, frozen=True):
    """Values that were added up.

    Attributes:
        count: How many.
        mean: Of them; 0 where there are none.
        m2: The sum of their squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, count: int, total: float, squares: float) -> Moments:
        """From the number of values, their sum and the sum of their squares."""
        if count <= 0:
            return cls()
        return cls(count, total / count, max(0.0, squares - total * total / count))

    @property
    def variance(self) -> float:
        """The unbiased estimate; 0 for less than two values."""
        return self.m2 / (self.count - 1) if self.count >= _FEWEST else 0.0


class Hits(msgspec.Struct, frozen=True):
    """How often something happened.

    Attributes:
        count: How often it could have.
        hits: How often it has.
    """

    count: int = 0
    hits: int = 0

    @property
    def rate(self) -> float:
        """The share; 0 where it could not have."""
        return self.hits / self.count if self.count else 0.0


class Bounds(msgspec.Struct, frozen=True):
    """Where a difference lies.

    Attributes:
        low: It is at least this.
        high: It is at most this.
    """

    low: float = -math.inf
    high: float = math.inf


def mean_bounds(new: Moments, old: Moments | None, margin: float, alpha: float) -> Bounds:
    """Where the mean of new lies above the mean of old, each bound wrong at any time with a chance of at most `alpha`.

    The difference d of two means with the information I (the inverse of its variance) moves like a Brownian motion:
    I·d has the drift I·δ and the variance I. Its likelihood ratio is mixed over one half of a normal distribution with
    the standard deviation `margin`, and whatever δ that mixture refutes by more than 1/alpha lies outside. In closed
    form each bound is sqrt(2 (I + r) log(1 + sqrt((I + r) / r) / (2 alpha))) / I away, with r = 1/margin² (the
    one-sided normal mixture of Howard et al. 2021).

    The margin is the width of the mixture because decisions fall when an interval has become as narrow as the margin,
    and no other width gets there with less: for alphas from 0.001 to 0.1 the best one saves less than a tenth of a
    percent of the values.

    Args:
        new: Values of the new version, or paired differences.
        old: Values of the old one; None if `new` has differences already.
        margin: The difference that matters, above 0.
        alpha: Between 0 and 1.
    """
    spread = _spread(new, margin) + (0.0 if old is None else _spread(old, margin))
    if not math.isfinite(spread):
        return Bounds()
    information, rest = 1 / spread, margin**-2
    whole = information + rest
    width = math.sqrt(2 * whole * math.log1p(math.sqrt(whole / rest) / (2 * alpha))) / information
    difference = new.mean - (0.0 if old is None else old.mean)
    return Bounds(difference - width, difference + width)


def _spread(values: Moments, margin: float) -> float:
    """The variance of a mean, as if one more value had come, some margins off: equal ones may not be all there is."""
    if values.count < _FEWEST:
        return math.inf
    return (values.m2 + (_UNSEEN * margin) ** 2) / ((values.count - 1) * values.count)


def evidence_above(new: Hits, old: Hits, margin: float) -> float:
    """How much speaks for a rate of new that is more than `margin` above the rate of old.

    If it is not, the chance that this ever comes to log(1/alpha) is at most alpha.

    Args:
        new: Of the new version.
        old: Of the old one.
        margin: From -1 to 1.

    Returns:
        The logarithm of a bet's worth (an e-value): what two rates that were learned from the counts, one for each
        version, make of them, over the best that any two rates within the margin do.
    """
    return _learned(new) + _learned(old) - _best(new, old, margin, above=False)


def evidence_below(new: Hits, old: Hits, margin: float) -> float:
    """How much speaks for a rate of new that is less than `margin` above the rate of old; as `evidence_above`.

    Half of the bet is on one rate for both versions: that is what mostly holds, and only one rate has to be learned.
    """
    both = Hits(new.count + old.count, new.hits + old.hits)
    learned = _log_mean(_learned(both), _learned(new) + _learned(old))
    return learned - _best(new, old, margin, above=True)


def proportion_bounds(new: Hits, old: Hits, alpha: float) -> Bounds:
    """Where the rate of new lies above the rate of old, each bound wrong at any time with a chance of at most `alpha`.

    They are the margins at which `evidence_above` and `evidence_below` come to log(1/alpha). Takes a few milliseconds.
    """
    enough = -math.log(alpha)
    low, _ = _halved(-1.0, 1.0, lambda margin: evidence_above(new, old, margin) >= enough)
    _, high = _halved(-1.0, 1.0, lambda margin: evidence_below(new, old, margin) < enough)
    return Bounds(low, high)


def _learned(seen: Hits) -> float:
    """The logarithm of how likely the order of hits and misses is if the rate is drawn from the priors."""
    misses = seen.count - seen.hits
    return _log_mean(*(_log_beta(a + seen.hits, b + misses) - _log_beta(a, b) for a, b in _PRIORS))


def _best(new: Hits, old: Hits, margin: float, *, above: bool) -> float:
    """The highest log-likelihood of both under rates that differ by at least (`above`) or at most the margin."""
    difference = new.rate - old.rate
    if difference >= margin if above else difference <= margin:
        return _likelihood(new, new.rate) + _likelihood(old, old.rate)
    # Each likelihood is concave, so the best lies on the border, and there between what each of them likes best.
    lowest, highest = max(0.0, -margin), min(1.0, 1.0 - margin)
    ends = sorted(min(highest, max(lowest, rate)) for rate in (old.rate, new.rate - margin))
    rates = _halved(ends[0], ends[1], lambda rate: _slope(old, rate) + _slope(new, rate + margin) > 0)
    return max(_likelihood(old, rate) + _likelihood(new, min(1.0, max(0.0, rate + margin))) for rate in rates)


def _halved(first: float, end: float, holds: Callable[[float], bool]) -> tuple[float, float]:
    """Narrows an interval down to where something ceases to hold, if it holds up to there and no further."""
    for _ in range(_HALVINGS):
        middle = (first + end) / 2
        first, end = (middle, end) if holds(middle) else (first, middle)
    return first, end


def _likelihood(seen: Hits, rate: float) -> float:
    """Its logarithm; what cannot be is minus infinity."""
    misses = seen.count - seen.hits
    if (seen.hits and rate <= 0) or (misses and rate >= 1):
        return -math.inf
    return (seen.hits and seen.hits * math.log(rate)) + (misses and misses * math.log1p(-rate))


def _slope(seen: Hits, rate: float) -> float:
    """The derivative of the log-likelihood; the rate may have left [0, 1] by a rounding."""
    if 0 < rate < 1:
        return (seen.hits - seen.count * rate) / (rate * (1 - rate))
    return (math.inf if seen.hits else 0.0) if rate <= 0 else (-math.inf if seen.count > seen.hits else 0.0)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_mean(one: float, other: float) -> float:
    """The logarithm of the mean of two numbers that are given by theirs."""
    high = max(one, other)
    return high + math.log((math.exp(one - high) + math.exp(other - high)) / 2)
