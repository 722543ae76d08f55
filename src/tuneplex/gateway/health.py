"""How the replicas do, by what becomes of the requests that they get: which of them get none for a while."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import count

from tuneplex.errors import Unavailable
from tuneplex.gateway.counters import Counters
from tuneplex.policy import Breaker, Verdict, Word
from tuneplex.types import Breaking, Replica, ReplicaState

__all__ = ["Health", "no_healthy_engine"]

_WELL = Word.WELL
_ANSWERED = Verdict(_WELL)
_NOT_YET = frozenset({ReplicaState.REQUESTED, ReplicaState.STARTING, ReplicaState.DEAD})


class Health:
    """The breakers of all replicas. A replica that is started again begins anew, with another endpoint.

    Args:
        counters: Where openings are counted.
        recovered: Called whenever a breaker has closed again.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, counters: Counters, recovered: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters = counters
        self._recovered = recovered
        self._clock = clock
        self._eras = count(1)
        self._breakers: dict[str, Breaker] = {}
        self._endpoints: dict[str, str] = {}
        self._troubled: dict[str, Breaker] = {}  # those that may not be closed; mostly empty

    def update(self, replicas: Iterable[Replica], settings: Breaking) -> None:
        """Follow a new view: forget replicas that are gone, or have been started again since."""
        endpoints = {replica.name: replica.endpoint for replica in replicas if replica.state not in _NOT_YET}
        self._breakers = {
            name: self._breakers[name] if self._endpoints.get(name) == endpoint else Breaker(settings, self._eras)
            for name, endpoint in endpoints.items()
        }
        self._endpoints = endpoints
        for breaker in self._breakers.values():
            breaker.settings = settings
        self._troubled = {
            name: breaker for name, breaker in self._troubled.items() if self._breakers.get(name) is breaker
        }

    # --- what may go

    def admits(self, name: str) -> bool:
        """Whether the replica of this name takes a request now."""
        return name not in self._troubled or self._admits(name)

    def _admits(self, name: str) -> bool:
        breaker, now = self._troubled[name], self._clock()
        if breaker.is_closed(now):
            del self._troubled[name]
            return True
        return breaker.admits(now)

    def broken_s(self, names: Iterable[str]) -> float | None:
        """Seconds until the first of these is tried again, where all of them fail; None where one does not."""
        now, troubled = self._clock(), self._troubled
        waits: list[float] = []
        for name in names:
            breaker = troubled.get(name)
            if breaker is None or not breaker.is_open:
                return None
            waits.append(breaker.wait_s(now))
        return min(waits, default=None)

    def states(self) -> dict[str, str]:
        """By name the replicas that do not simply take requests: `open`, `half-open` or `held`."""
        now = self._clock()
        return {name: breaker.state(now) for name, breaker in self._troubled.items() if not breaker.is_closed(now)}

    # --- what happens

    def began(self, name: str) -> int:
        """A request is about to be sent there. Returns its era, which `answered` and `ended` want."""
        breaker = self._breakers.get(name)
        if breaker is None:
            return 0
        return breaker.begin(self._clock() if name in self._troubled else 0.0)

    def answered(self, name: str, era: int) -> None:
        """The first part of a proper reply has come: if the request is a probe, it need not come to its end."""
        breaker = self._troubled.get(name)
        if breaker is not None and breaker.state(self._clock()) == "half-open":
            self._heard(breaker, name, era, _ANSWERED)

    def ended(self, name: str, era: int, verdict: Verdict) -> None:
        """A request has ended there, or goes on without this replica."""
        breaker = self._breakers.get(name)
        if breaker is None:
            return
        if verdict.word is _WELL and name not in self._troubled:  # mostly; then it makes no difference when
            breaker.end(0.0, era, _WELL)
        else:
            self._heard(breaker, name, era, verdict)

    def _heard(self, breaker: Breaker, name: str, era: int, verdict: Verdict) -> None:
        now, opened = self._clock(), breaker.opened
        if verdict.hold_s:
            breaker.hold(now, verdict.hold_s)
        breaker.end(now, era, verdict.word)
        if breaker.opened > opened:
            self._counters.breaker_opened(name)
        if not breaker.is_closed(now):
            self._troubled[name] = breaker
        elif self._troubled.pop(name, None) is not None:
            self._recovered()


def no_healthy_engine(model: str, retry_s: float) -> Unavailable:
    """What clients are told while the breakers of all replicas for a model are open.

    Args:
        model: The name that the client uses.
        retry_s: From `Health.broken_s`.
    """
    words = f"The engines for the model `{model}` have failed, and get no requests for a moment."
    return Unavailable(words, code="no_healthy_engine", retry_after_s=max(1, math.ceil(retry_s)))
