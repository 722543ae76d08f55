"""Whether a request that failed is sent again, what its failure says of the replica, and how many may be sent again.

Every attempt to have a request answered by a replica is a *try*. How one ended is an `End`; what follows from it is
one row of a table. `Budget` keeps tries that follow others from multiplying an outage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

import msgspec

from tuneplex.policy.breaking import Word
from tuneplex.types import Retries

__all__ = ["DEATHS", "Budget", "End", "Verdict", "backoff_s", "read_retry_after", "verdict"]

DEATHS = 2  # with so many a request is sent nowhere any more, as it may be what engines end of
_BASE_S = 0.05
_LONGEST_S = 2.0
_BUSY_S = 1.0  # where a replica does not say for how long
_BURST_S = 10.0
_BURST_REQUESTS = 100
_DOUBLINGS = 16
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


class End(StrEnum):
    """How a try ended."""

    COMPLETE = "complete"
    UNREACHABLE = "unreachable"  # no connection; the request was not sent
    BROKEN = "broken"  # the connection ended before the reply did
    SILENT = "silent"  # nothing of a reply came in time
    STALLED = "stalled"  # nothing more of it came in time
    INVALID = "invalid"  # the reply is none that can be passed on
    DEAD = "dead"  # the engine says itself that it is about to end
    BUSY = "busy"  # 429
    UNAVAILABLE = "unavailable"  # 502, 503, 504
    FAILED = "failed"  # another 5xx, or an error inside of a stream: perhaps by this request
    REFUSED = "refused"  # the request is wrong, by the engine's word
    STOPPED = "stopped"  # by us: its client left, its time was over, a limit was reached


class Verdict(msgspec.Struct, frozen=True):
    """What follows from the end of a try.

    Attributes:
        word: What it says of the replica.
        again: The request may be sent again, as far as its client has got nothing yet that it could contradict.
        same: Should there be no other replica, this one is worth another try.
        died: The engine ended with the request in flight, or looks like it.
        hold_s: For how long the replica gets no requests, by its own wish.
    """

    word: Word = Word.NOTHING
    again: bool = False
    same: bool = False
    died: bool = False
    hold_s: float = 0.0


_VERDICTS = {
    End.COMPLETE: Verdict(Word.WELL),
    End.UNREACHABLE: Verdict(Word.FAILED, again=True, same=True),
    End.BROKEN: Verdict(Word.FAILED, again=True, same=True, died=True),
    End.SILENT: Verdict(Word.FAILED, again=True),
    End.STALLED: Verdict(Word.FAILED, again=True),
    End.INVALID: Verdict(Word.FAILED, again=True),
    End.DEAD: Verdict(Word.FAILED, again=True, died=True),
    End.BUSY: Verdict(Word.NOTHING, again=True, same=True, hold_s=_BUSY_S),
    End.UNAVAILABLE: Verdict(Word.FAILED, again=True, same=True),
    End.FAILED: Verdict(Word.DOUBTFUL),
    End.REFUSED: Verdict(),
    End.STOPPED: Verdict(),
}

_MAY_ASK_FOR_TIME = frozenset({End.BUSY, End.UNAVAILABLE})


def verdict(end: End, retry_after_s: float | None = None) -> Verdict:
    """What follows from the end of a try.

    Args:
        end: How it ended.
        retry_after_s: When the replica wants to be asked again, if it has said so. A replica that says so is not
            broken. Long ones are cut by `Breaker.hold`.
    """
    found = _VERDICTS[end]
    if retry_after_s is None or end not in _MAY_ASK_FOR_TIME:
        return found
    return msgspec.structs.replace(found, word=Word.NOTHING, hold_s=retry_after_s)


def read_retry_after(value: bytes, wall: float) -> float | None:
    """Seconds from now by a `retry-after` header, which holds seconds or a date; None if it holds neither.

    Args:
        value: Of the header.
        wall: Unix time.
    """
    text = value.strip().decode("latin-1")
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - wall)


def backoff_s(tried: int, random: Callable[[], float]) -> float:
    """How long to wait before the same replica is tried again: up to twice as long each time, evenly spread.

    Args:
        tried: How often it was tried there, at least 1.
        random: Numbers from 0 to 1.
    """
    return random() * min(_LONGEST_S, _BASE_S * 2.0 ** min(tried - 1, _DOUBLINGS))


class Budget:
    """How many requests may be sent again. Times are seconds of any one clock that only goes forward.

    Over any T seconds with N requests it gives at most `burst + per_second * T + share * N` tries.

    Args:
        settings: How many; they may be replaced at any time.
        now: The time.

    Attributes:
        settings: As given.
        requests: To be raised by one with each new request.
    """

    __slots__ = ("_at", "_counted", "_left", "requests", "settings")

    def __init__(self, settings: Retries, now: float) -> None:
        self.settings = settings
        self.requests = 0
        self._counted = 0
        self._at = now
        self._left = self.burst

    @property
    def burst(self) -> float:
        """At most so many at once: what ten seconds and a hundred requests bring, and one if there are any at all."""
        settings = self.settings
        brought = _BURST_S * settings.per_second + _BURST_REQUESTS * settings.share
        return max(1.0, brought) if brought else 0.0

    def take(self, now: float) -> bool:
        """Whether a request may be sent again now, or a second engine asked; if so, it is one less."""
        settings = self.settings
        brought = settings.per_second * (now - self._at) + settings.share * (self.requests - self._counted)
        self._left = min(self.burst, self._left + brought)
        self._at, self._counted = now, self.requests
        if self._left < 1:
            return False
        self._left -= 1
        return True
