"""What is under way at the engines, and the one place where requests are counted when they are over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from tuneplex.gateway.counters import Counters, Outcome
from tuneplex.gateway.money import spent
from tuneplex.gateway.scribe import Scribe

if TYPE_CHECKING:
    from tuneplex.gateway.asked import Asked
    from tuneplex.gateway.attempt import Attempt
    from tuneplex.gateway.relay import Relay

__all__ = ["Ledger"]

_CLIENT_CLOSED = 499  # nginx's word for it, used for counting only


class Ledger:
    """The requests under way, their attempts at replicas, and what was counted of those that are over.

    Attributes:
        scribe: Writes down what happens.
        outstanding: Attempts under way by replica name.
        relays: The requests under way.
        attempts: The attempts under way; mostly one for each of them.
        serial: Numbers all attempts.
        on_began: Called with each attempt that is about to be sent.
        on_ended: Called with each that is over.
        on_closed: Called with each request that is over.
    """

    def __init__(self, counters: Counters, scribe: Scribe | None = None) -> None:
        self.counters = counters
        self.scribe = scribe or Scribe()
        self.outstanding: dict[str, int] = {}
        self.relays: set[Relay] = set()
        self.attempts: set[Attempt] = set()
        self.serial = count()
        self.on_began: Callable[[Attempt], None] = _ignore
        self.on_ended: Callable[[Attempt], None] = _ignore
        self.on_closed: Callable[[Relay, Outcome], None] = _ignore

    def began(self, attempt: Attempt) -> None:
        """A request is about to be sent to a replica."""
        name = attempt.upstream.replica.name
        self.outstanding[name] = self.outstanding.get(name, 0) + 1
        self.attempts.add(attempt)
        self.scribe.began(attempt)
        self.on_began(attempt)

    def ended(self, attempt: Attempt) -> None:
        """The replica has nothing more to do with it."""
        self.attempts.discard(attempt)
        name = attempt.upstream.replica.name
        left = self.outstanding[name] - 1
        if left:
            self.outstanding[name] = left
        else:
            del self.outstanding[name]
        self.scribe.ended(attempt)
        self.on_ended(attempt)

    def closed(self, relay: Relay, outcome: Outcome) -> None:
        """A request is over, one way or another."""
        self.relays.discard(relay)
        asked, exchange = relay.asked, relay.exchange
        tally = asked.tally
        tally.answered(exchange.status or _CLIENT_CLOSED)
        tally.ended(outcome, relay.pool)
        tally.duration_s.observe(relay.elapsed_s())
        tally.received += exchange.received
        tally.sent += exchange.sent
        if relay.used is not None:
            tally.spent(relay.used, relay.pool)
            if relay.reading is not None:
                relay.reading.gaps.end(relay.used.completion)
        if asked.ticket is not None:
            asked.ticket.settle(*_spent(relay))
        self.scribe.closed(relay, outcome)
        self.on_closed(relay, outcome)

    def turned_away(self, asked: Asked, status: int, code: str, *, told: int | None = None) -> None:
        """A request for a model is over, and no engine has heard of it; its client may have been told 200 already."""
        asked.tally.answered(told or status)
        self.scribe.turned_away(asked, status, code)


def _spent(relay: Relay) -> tuple[int, int] | tuple[None, None]:
    """Tokens and money; nothing where nobody knows."""
    used = relay.used
    return (None, None) if used is None else (used.prompt + used.completion, spent(relay.asked.model.price, used))


def _ignore(*_: object) -> None:
    """Nobody wants to know."""
