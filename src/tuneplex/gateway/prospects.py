"""How those that wait stand: how long it will take, what their clients are told of it, and when it makes no sense."""

from __future__ import annotations

import math
from collections.abc import Callable

from tuneplex.errors import ApiError, DeadlineExceeded, Unavailable
from tuneplex.gateway.answers import PASSED, STREAM_HEADERS
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.heads import EVENT_STREAM
from tuneplex.gateway.pace import Speed
from tuneplex.policy import FairQueue

__all__ = ["Prospects"]

_TOLD_AT_ONCE = 50  # and no more, so that streams go on in between
_SLACK = 0.1  # of the time between comments: what is due within it goes out together
_RETRY_S = 5  # where nobody knows how long it takes
_EXACT_S = 10


class Prospects:
    """Of the requests in a queue.

    Args:
        queue: In which they wait.
        wall: Unix time; `Replica.ready_at` is on it.

    Attributes:
        speed: How fast work gets done.
    """

    def __init__(self, queue: FairQueue[Asked], wall: Callable[[], float]) -> None:
        self.speed = Speed()
        self._queue = queue
        self._wall = wall

    def wait_s(self, asked: Asked, ahead: float) -> float | None:
        """Seconds until its turn, with so much work before it; None if nobody can tell."""
        group = asked.group
        if not group.replicas:
            ready = [replica.ready_at for replica in group.coming if replica.ready_at is not None]
            return max(0.0, min(ready) - self._wall()) if ready else None
        speed, between_s = self.speed.per_second, self.speed.between_s
        # Its own work is not to be waited for: when all before it have gone, the next place is its.
        return None if speed is None or between_s is None else ahead / speed + between_s

    def retry_s(self, asked: Asked) -> int:
        """When trying again may make sense, seconds."""
        wait_s = self.wait_s(asked, self._queue.work_ahead(asked.place))
        return _RETRY_S if wait_s is None else max(1, math.ceil(wait_s))

    def hopeless(self, asked: Asked, now: float) -> ApiError | None:
        """Why it need not wait, if its turn comes too late: better told now than after it has waited for nothing."""
        if any(replica.ready_at is None for replica in asked.group.coming):
            return None  # that one may be the first
        if (longest_s := self.wait_s(asked, self._queue.work)) is None or longest_s <= asked.until - now:
            return None  # even behind all others: no need to know its turn
        wait_s = self.wait_s(asked, self._queue.work_ahead(asked.place))
        left_s = asked.until - now
        if wait_s is None or wait_s <= left_s:
            return None
        retry_s = max(1, math.ceil(wait_s - left_s))
        words = f"Its turn would come in about {_seconds(wait_s)}, and it may wait {_seconds(left_s)}."
        if asked.until == asked.deadline:
            met = f"The request cannot meet its deadline. {words}"
            return DeadlineExceeded(met, code=PASSED, retry_after_s=retry_s)
        if asked.group.replicas:
            return Unavailable(f"Too many requests wait already. {words}", code="overloaded", retry_after_s=retry_s)
        ready = f"No engine is ready for the model `{asked.shown}`. {words}"
        return Unavailable(ready, code="no_ready_engine", retry_after_s=retry_s)

    def expired(self, asked: Asked) -> ApiError:
        """Why it may wait no longer."""
        if asked.until == asked.deadline:
            words = "The request's deadline passed while it was waiting."
            return DeadlineExceeded(words, code=PASSED, retry_after_s=self.retry_s(asked))
        waited = _seconds(asked.until - asked.since)
        if asked.group.replicas:
            words = f"No place got free within {waited}."
        else:
            words = f"No engine got ready for the model `{asked.shown}` within {waited}."
        return Unavailable(words, code="waited_too_long", retry_after_s=self.retry_s(asked))

    def tell(self, now: float, every_s: float) -> None:
        """Tell streams how they stand, as far as it is time to. One look at the queue is for all of them."""
        ahead, soon = 0.0, now + _SLACK * every_s
        due: list[tuple[int, float, Asked]] = []
        for position, place in enumerate(self._queue.order(), 1):  # to its end before anything else
            if place.item.comment_at <= soon and len(due) < _TOLD_AT_ONCE:
                due.append((position, ahead, place.item))
            ahead += place.work
        of = len(self._queue)
        for position, before, asked in due:
            asked.comment_at = now + every_s
            if not asked.exchange.paused and not asked.exchange.gone:
                _say(asked, position, of, self.wait_s(asked, before))


def _say(asked: Asked, position: int, of: int, wait_s: float | None) -> None:
    exchange = asked.exchange
    if not exchange.spoken:
        known = b"" if wait_s is None else b"x-tuneplex-estimated-wait: %d\r\n" % math.ceil(wait_s)
        lines = b"x-tuneplex-queue-position: %d\r\n" % position
        exchange.start(200, EVENT_STREAM, STREAM_HEADERS + lines + known)
    about = b"" if wait_s is None else b", about %d s" % math.ceil(wait_s)
    exchange.comment(b"waiting, position %d of %d%b" % (position, of, about))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= _EXACT_S else f"{seconds:.1f} s"
