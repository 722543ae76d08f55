"""How the old and the new version of an adapter did in the same time, from requests that are over."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tuneplex.journal import Finished
from tuneplex.policy.rollout import Figures
from tuneplex.policy.sequential import Moments
from tuneplex.records import BAD, GOOD

__all__ = ["Comparing"]

_MOST = 20_000  # requests of each version: what these cannot decide, more do not either
_OURS = 500  # from this status on a refusal is ours


class Comparing:
    """Adds requests up for one trial, each once.

    Args:
        old: The id of the version that is there.
        new: The id of the one that is tried.
        since: When the trial began, Unix time; requests that came before do not count.

    Attributes:
        trial: The arguments.
        complete: What was over before anybody listened has been taken in, too.
    """

    def __init__(self, old: str, new: str, since: float) -> None:
        self.trial = old, new, since
        self.complete = False
        self._sides = {old: _Side(), new: _Side()}
        self._old, self._new = old, new
        self._known: set[str] = set()

    @property
    def old(self) -> Figures:
        """Of the version that is there."""
        return self._sides[self._old].figures()

    @property
    def new(self) -> Figures:
        """Of the one that is tried."""
        return self._sides[self._new].figures()

    def heard(self, finished: Iterable[Finished]) -> None:
        """Take requests in; those that are known already, and those of other versions, do not matter."""
        for one in finished:
            side = self._sides.get(one.version)
            if side is None or one.arrived < self.trial[2] or one.id in self._known or side.requests >= _MOST:
                continue
            self._known.add(one.id)
            side.add(one)


class _Side:
    """One version's requests, added up."""

    def __init__(self) -> None:
        self.requests = self.errors = 0
        self._ttft, self._tpot, self._length = _Sums(), _Sums(), _Sums()

    def add(self, one: Finished) -> None:
        """One more; what a client broke off or asked wrongly says nothing of the version."""
        good = one.outcome in GOOD
        if not good and one.outcome not in BAD and not (one.outcome == "rejected" and one.status >= _OURS):
            return
        self.requests += 1
        self.errors += not good
        if not good:
            return
        self._length.add(math.log(one.completion + 1))
        if one.first_token_s is not None and one.first_token_s > one.waited_s:
            self._ttft.add(math.log(one.first_token_s - one.waited_s))  # waiting here is not the version's fault
            took_s = one.closed - one.arrived - one.first_token_s
            if one.completion > 1 and took_s > 0:
                self._tpot.add(math.log(took_s / (one.completion - 1)))

    def figures(self) -> Figures:
        """What they come to."""
        moments = (self._ttft.moments(), self._tpot.moments(), self._length.moments())
        return Figures(self.requests, self.errors, *moments)


class _Sums:
    """Values, added up by Welford's way, which keeps the digits of small differences."""

    def __init__(self) -> None:
        self._count, self._mean, self._m2 = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        """One more."""
        self._count += 1
        off = value - self._mean
        self._mean += off / self._count
        self._m2 += off * (value - self._mean)

    def moments(self) -> Moments:
        """What they come to."""
        return Moments(self._count, self._mean, self._m2)
