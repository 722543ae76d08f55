"""How much work requests are, and how fast it gets done: what estimates of a wait are made of."""

from __future__ import annotations

import math

__all__ = ["Lengths", "Speed"]

_UNKNOWN_LENGTH = 256.0
_LEAST_WEIGHT = 0.02  # of the newest reply, in a mean of many

_REMEMBERED_S = 30.0
_FORGOTTEN_S = 60.0
_REMEMBERED = 10.0  # requests, at least
_LEAST_FINISHED = 5.0
_LEAST_S = 1.0


class Lengths:
    """How many tokens the replies of each model have: a running mean."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}

    def expected(self, model: str) -> float:
        """Of the next reply."""
        mean = self._means.get(model)
        return _UNKNOWN_LENGTH if mean is None else mean[0]

    def saw(self, model: str, tokens: int) -> None:
        """A reply had so many."""
        mean, count = self._means.get(model, (0.0, 0.0))
        weight = max(1 / (count + 1), _LEAST_WEIGHT)
        self._means[model] = mean + weight * (tokens - mean), min(count + 1, 1 / _LEAST_WEIGHT)


class Speed:
    """How much work is finished in a second, while something waits.

    Work is counted when its request is over, all of it. Over some requests that comes to the same as what the engines
    do meanwhile; so until some are over, nobody knows.
    """

    def __init__(self) -> None:
        self._work = 0.0
        self._finished = 0.0
        self._seconds = 0.0
        self._at = -math.inf

    def begins(self, now: float) -> None:
        """Something begins to wait; what is known from long ago is forgotten."""
        if now - self._at > _FORGOTTEN_S:
            self._work = self._finished = self._seconds = 0.0

    def passed(self, now: float) -> None:
        """Something waits, and engines work; called several times a second while it is so."""
        self.begins(now)
        seconds = now - self._at
        self._at = now
        if seconds < _LEAST_S:  # a longer time is one in which nothing waited
            kept = math.exp(-seconds / self._remembered_s) if self._finished else 1.0
            self._work *= kept
            self._finished *= kept
            self._seconds = self._seconds * kept + seconds

    def finished(self, work: float) -> None:
        """So much work is over."""
        self._work += work
        self._finished += 1

    @property
    def _remembered_s(self) -> float:
        """For how long what was seen counts: where little gets over, for longer, or nobody would ever know."""
        return max(_REMEMBERED_S, _REMEMBERED * self._seconds / self._finished)

    @property
    def per_second(self) -> float | None:
        """None while nobody can tell."""
        return self._work / self._seconds if self._is_known else None

    @property
    def between_s(self) -> float | None:
        """Seconds from one request that is over to the next; None while nobody can tell."""
        return self._seconds / self._finished if self._is_known else None

    @property
    def _is_known(self) -> bool:
        return self._finished >= _LEAST_FINISHED and self._seconds >= _LEAST_S and self._work > 0
