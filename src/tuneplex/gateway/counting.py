"""Requests whose tokens are being counted: how long that may take, and what becomes of those that leave."""

from __future__ import annotations

from tuneplex.errors import ApiError, DeadlineExceeded, Unavailable
from tuneplex.gateway.answers import PASSED
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.tokens import Pending

__all__ = ["Counting"]

_RETRY_S = 5
_CLIENT_CLOSED = 499  # nginx's word for it, used for counting only


class Counting:
    """Listens to the client of a request whose tokens are being counted.

    Attributes:
        asked: The request.
        until: How long it may take, on the clock of `time.monotonic`.
    """

    def __init__(self, asked: Asked, pending: Pending, until: float, among: set[Counting]) -> None:
        self.asked = asked
        self.until = until
        self._pending = pending
        self._among = among
        among.add(self)
        asked.exchange.listener = self

    def over(self) -> None:
        """It is counted, or need not be any more."""
        self._among.discard(self)
        self.asked.exchange.listener = None

    def expire(self) -> ApiError:
        """It has taken too long: nothing more needs to be counted. Returns what to tell."""
        self.leave()
        if self.until == self.asked.deadline:
            words = "The request's deadline passed while its tokens were being counted."
            return DeadlineExceeded(words, code=PASSED, retry_after_s=_RETRY_S)
        words = "Too many large requests are being counted. Try again later."
        return Unavailable(words, code="waited_too_long", retry_after_s=_RETRY_S)

    def leave(self) -> None:
        """Nothing more needs to be counted."""
        self.over()
        self._pending.cancel()

    def client_gone(self) -> None:
        """It has left."""
        self.leave()
        self.asked.tally.answered(_CLIENT_CLOSED)

    def client_paused(self) -> None:
        """Nothing is written."""

    def client_resumed(self) -> None:
        """Nothing is written."""
