"""When a replica that fails gets no requests for a while, and how it comes back.

A breaker is closed while all is well. It opens when a replica fails several times in a row, or mostly fails. After a
while it is half open: exactly one request goes, the probe. If that gets an answer the breaker closes and forgets
what was; if it fails the breaker opens again, for twice as long. Where nobody hears of a probe for long another one
may go, and the first of them to end counts: replies that take longer than that must be able to close it.

Whatever began before a breaker opened or closed says nothing about the time after it: a hundred streams that all end
because an engine hung must not count against the engine that came back meanwhile. So each request gets the number of
its *era* when it begins, and its end counts in that era only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum

from tuneplex.types import Breaking

__all__ = ["Breaker", "Word"]

_SPAN_S = 30.0
_FAILURES = 20  # within that span, with at most as many successes between them
_PROBED_S = 1.0  # by when a probe has mostly been answered; for those who ask when to come back
_NO_ERA = -1


class Word(StrEnum):
    """What the end of a request says of the replica."""

    WELL = "well"
    FAILED = "failed"
    DOUBTFUL = "doubtful"  # it failed, and the request may be why; so it does not count in a row
    NOTHING = "nothing"


_WELL = Word.WELL


class Breaker:
    """The breaker of one replica. Times are seconds of any one clock that only goes forward.

    Args:
        settings: When it opens and for how long; they may be replaced at any time.
        eras: Numbers above 0, each of them once. Those of breakers that follow each other must not meet.

    Attributes:
        settings: As given.
        opened: How often it has opened.
    """

    __slots__ = (
        "_bad",
        "_closed_at",
        "_era",
        "_eras",
        "_good",
        "_held_until",
        "_open_s",
        "_open_until",
        "_probe_until",
        "_row",
        "opened",
        "settings",
    )

    def __init__(self, settings: Breaking, eras: Iterator[int]) -> None:
        self.settings = settings
        self.opened = 0
        self._eras = eras
        self._era = next(eras)
        self._open_until: float | None = None  # None: it is closed
        self._open_s = 0.0
        self._probe_until: float | None = None  # None: no probe is under way
        self._closed_at: float | None = None  # None: it has never been open
        self._held_until = float("-inf")
        self._forget()

    # --- what may go

    def is_closed(self, now: float) -> bool:
        """Whether nothing stands against the replica: it is neither open, nor half open, nor held."""
        return self._open_until is None and self._held_until <= now

    @property
    def is_open(self) -> bool:
        """Whether the replica has failed, and has not been well since: it is open or half open."""
        return self._open_until is not None

    def admits(self, now: float) -> bool:
        """Whether a request may go now; if it is half open, that will be the probe."""
        return self.wait_s(now) <= 0

    def wait_s(self, now: float) -> float:
        """Seconds until a request may go, 0 for now. While a probe is under way this is a guess."""
        until = self._held_until
        if self._open_until is not None:
            until = max(until, self._open_until)
            if self._probe_until is not None:
                until = max(until, min(self._probe_until, now + _PROBED_S))
        return max(0.0, until - now)

    def state(self, now: float) -> str:
        """`closed`, `open`, `half-open` or `held`, for reports."""
        if self._open_until is None:
            return "closed" if self._held_until <= now else "held"
        return "half-open" if self._open_until <= now else "open"

    # --- what happens

    def begin(self, now: float) -> int:
        """A request goes. Returns its era, for `end`; one that was not admitted has none, and its end says nothing."""
        if self._open_until is None:
            return self._era
        if not self.admits(now):
            return _NO_ERA
        self._probe_until = now + self.settings.longest_s
        return self._era

    def end(self, now: float, era: int, word: Word) -> None:
        """A request of this era has ended, or a probe has got the first part of its reply.

        Args:
            now: When.
            era: From `begin`.
            word: What it says of the replica.
        """
        if era != self._era:
            return
        if self._open_until is None:
            self._count(now, word)
        elif word is _WELL:
            self._close(now)
        elif word is Word.NOTHING:
            self._probe_until = None
        else:
            self._open(now)

    def hold(self, now: float, seconds: float) -> None:
        """The replica has asked for nothing more until then; not for longer than an open breaker would give it."""
        self._held_until = max(self._held_until, now + min(seconds, self.settings.longest_s))

    # --- how it counts

    def _count(self, now: float, word: Word) -> None:
        if word is _WELL:
            self._row = 0
            self._good += 1
        elif word is not Word.NOTHING:
            self._row += int(word is Word.FAILED)
            self._bad.append((now, self._good))
            if self._row >= self.settings.failures or self._mostly_fails(now):
                self._open(now)

    def _mostly_fails(self, now: float) -> bool:
        since, good = self._bad[0]
        return len(self._bad) == _FAILURES and now - since <= _SPAN_S and self._good - good <= _FAILURES

    def _open(self, now: float) -> None:
        settings = self.settings
        at_once = self._open_until is not None or (
            self._closed_at is not None and now - self._closed_at < settings.longest_s
        )
        self._open_s = min(settings.longest_s, 2 * self._open_s if at_once else settings.open_s)
        self._open_until = now + self._open_s
        self._probe_until = None
        self._era = next(self._eras)
        self.opened += 1
        self._forget()

    def _close(self, now: float) -> None:
        self._open_until = self._probe_until = None
        self._closed_at = now
        self._forget()

    def _forget(self) -> None:
        self._row = self._good = 0
        self._bad: deque[tuple[float, int]] = deque(maxlen=_FAILURES)
