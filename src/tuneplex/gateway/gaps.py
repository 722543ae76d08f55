"""The gaps between the tokens of a stream, as its client sees them: one reading of the clock each, counted later."""

from __future__ import annotations

from operator import sub

from tuneplex.gateway.counters import Histogram

__all__ = ["Gaps"]

_MOST = 256  # readings that a stream keeps before they are counted
_TWO = 2


class Gaps:
    """The times at which the pieces of one stream went to its client, one piece with any number of tokens.

    Args:
        between: Gets each gap, in seconds.
        per_token: Gets one value when the stream is over, in seconds.

    Attributes:
        mark: Called with the time of each piece that brings a token, on the clock of `time.monotonic`. It runs for
            every event of every stream, so it is the list's own method.
    """

    __slots__ = ("_between", "_first", "_passed", "_per_token", "_times", "mark")

    def __init__(self, between: Histogram, per_token: Histogram) -> None:
        self._between = between
        self._per_token = per_token
        self._times: list[float] = []
        self._first: float | None = None
        self._passed = 0
        self.mark = self._times.append

    @property
    def last(self) -> float | None:
        """When the last piece went; None before the first one."""
        return self._times[-1] if self._times else None

    @property
    def pieces(self) -> int:
        """How many there were."""
        return self._passed + len(self._times)

    def trim(self) -> None:
        """Count those that there are, if they are many; called several times a second."""
        if len(self._times) >= _MOST:
            self._count()

    def end(self, tokens: int) -> None:
        """The stream is over, and had so many tokens."""
        self._count()
        if self._first is not None and tokens > 1:
            self._per_token.observe((self._times[-1] - self._first) / (tokens - 1))

    def _count(self) -> None:
        times = self._times
        if len(times) < _TWO:
            return
        if self._first is None:
            self._first = times[0]
        self._between.observe_all(list(map(sub, times[1:], times)))
        self._passed += len(times) - 1
        del times[:-1]
