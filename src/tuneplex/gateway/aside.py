"""Requests for which something else is done first: how long that may take, and what becomes of those that leave."""

from __future__ import annotations

from collections.abc import Callable

from tuneplex.errors import ApiError, DeadlineExceeded
from tuneplex.gateway.answers import PASSED
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.ledger import Ledger

__all__ = ["Aside"]

_RETRY_S = 5
_CLIENT_CLOSED = 499  # nginx's word for it, used for counting only


class Aside:
    """Listens to the client of a request while its tokens are counted, or the journal is brought to the disk.

    Args:
        asked: The request.
        among: All such requests.
        ledger: Hears of those that leave.
        cancel: Stops what is done for it.
        late: What to tell its client when that has taken too long.
        until: How long it may take, on the clock of `time.monotonic`; its deadline may come before.

    Attributes:
        asked: The request.
        until: How long it may take.
    """

    def __init__(
        self,
        asked: Asked,
        among: set[Aside],
        ledger: Ledger,
        *,
        cancel: Callable[[], object],
        late: ApiError,
        until: float,
    ) -> None:
        self.asked = asked
        self.until = min(until, asked.deadline)
        self._among = among
        self._ledger = ledger
        self._cancel = cancel
        self._late = late
        among.add(self)
        asked.exchange.listener = self

    def over(self) -> None:
        """It is done, or need not be any more."""
        self._among.discard(self)
        self.asked.exchange.listener = None

    def expire(self) -> ApiError:
        """It has taken too long. Returns what to tell."""
        self.leave()
        if self.until == self.asked.deadline:
            words = "The request's deadline passed before it could be sent."
            return DeadlineExceeded(words, code=PASSED, retry_after_s=_RETRY_S)
        return self._late

    def leave(self) -> None:
        """Nothing more needs to be done for it."""
        self.over()
        self._cancel()
        if self.asked.ticket is not None:
            self.asked.ticket.cancel()

    def client_gone(self) -> None:
        """It has left."""
        self.leave()
        self._ledger.turned_away(self.asked, _CLIENT_CLOSED, "")

    def client_paused(self) -> None:
        """Nothing is written."""

    def client_resumed(self) -> None:
        """Nothing is written."""
