"""How much of a service's promise was kept: availability, error budgets and how fast they are used. Arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

__all__ = ["NOTHING", "Service", "availability", "burnt", "together"]


_DIGITS = 9


class Service(msgspec.Struct, frozen=True):
    """Requests that were added up.

    Attributes:
        good: Those that were served.
        bad: Those that should have been.
        allowed: How many of both together may be bad, by the target.
    """

    good: int = 0
    bad: int = 0
    allowed: float = 0.0

    @classmethod
    def of(cls, good: int, bad: int, target: float) -> Service:
        """What was served of so many requests with this target, percent below 100."""
        rest = round(100 - target, _DIGITS)  # of 99.9 this is 0.1, and the last request that may be bad may be
        return cls(good, bad, (good + bad) * rest / 100)

    @property
    def total(self) -> int:
        """All that count."""
        return self.good + self.bad


NOTHING = Service()


def together(parts: Iterable[Service]) -> Service:
    """Several as one: each keeps the target that it has by itself."""
    good = bad = 0
    allowed: list[float] = []
    for part in parts:
        good, bad = good + part.good, bad + part.bad
        allowed.append(part.allowed)
    return Service(good, bad, math.fsum(allowed))


def availability(service: Service) -> float | None:
    """Percent of the requests that were served; None where nobody has asked."""
    return 100 * service.good / service.total if service.total else None


def burnt(service: Service) -> float | None:
    """How many times what is allowed was bad; None where nobody has asked.

    Of the whole window this is the share of the error budget that is used: 1 is all of it. Of a shorter time it is the
    burn rate: at 1, what is allowed is used up exactly when the window is over.
    """
    return service.bad / service.allowed if service.allowed > 0 else None
