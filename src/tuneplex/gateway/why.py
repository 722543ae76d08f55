"""Why a request took as long as it did: what is noted of one that asks (`x-tuneplex-why: 1`), and how it is told.

A whole reply tells it in a header of the same name, a stream in a comment behind its last event.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import msgspec

from tuneplex.errors import BadRequest
from tuneplex.gateway.access import demand
from tuneplex.gateway.principals import NO_KEY
from tuneplex.identity import Principal, Scope
from tuneplex.why import HEADER, Tokens, Told, Tried

if TYPE_CHECKING:
    from tuneplex.gateway.attempt import Attempt
    from tuneplex.gateway.exchange import Exchange
    from tuneplex.gateway.relay import Relay

__all__ = ["Why", "read_why", "refuse_why"]

_HEADER = HEADER.encode()
_WISHES = {b"1": True, b"0": False}


class Why:
    """What is noted of one request.

    Attributes:
        relay: What it is at the engines; None before.
    """

    relay: Relay | None = None
    _waited_s = 0.0
    _waited_for = ""
    _counted_s = 0.0
    _first_token_s: float | None = None

    def __init__(self, exchange: Exchange, version: str) -> None:
        self._exchange = exchange
        self._version = version
        self._tried: dict[Attempt, Tried] = {}

    def counted(self) -> None:
        """Its tokens have been counted."""
        self._counted_s = self._elapsed_s()

    def waits(self, what: str) -> None:
        """It begins to wait in the waiting room, for this."""
        self._waited_for = what

    def waited(self, seconds: float) -> None:
        """Its turn has come."""
        self._waited_s = seconds

    def began(self, attempt: Attempt, beside: int, *, goes_on: bool) -> None:
        """It is sent to a replica."""
        name = attempt.upstream.replica.name
        self._tried[attempt] = Tried(name, self._elapsed_s(), beside, goes_on=goes_on)

    def ended(self, attempt: Attempt) -> None:
        """That one is over, and not because its reply is complete."""
        tried = self._tried[attempt]
        tried.ended = attempt.ended.value
        tried.took_s = _rounded(self._elapsed_s() - tried.after_s)

    def first_token(self) -> None:
        """The first event of its stream has come."""
        self._first_token_s = self._elapsed_s()

    def told(self) -> bytes:
        """All of it as JSON, in ASCII."""
        for attempt, tried in self._tried.items():
            if attempt.answers and not tried.ended:
                tried.ended = "answers"
        used = None if self.relay is None else self.relay.so_far()
        told = Told(
            self._exchange.request_id.decode(),
            self._version,
            self._elapsed_s(),
            _rounded(self._waited_s),
            self._waited_for,
            self._counted_s,
            self._first_token_s,
            list(self._tried.values()),
            None if used is None else Tokens(used.prompt, used.cached, used.completion, used.exact),
        )
        return json.dumps(msgspec.to_builtins(told), separators=(",", ":")).encode()

    def _elapsed_s(self) -> float:
        return _rounded(time.monotonic() - self._exchange.started_s)


def refuse_why(exchange: Exchange) -> None:
    """Refuse to tell it of a reply that is kept for others.

    Raises:
        BadRequest: It was asked for.
    """
    if _WISHES.get(exchange.headers.get(_HEADER, b"0").strip(), True):
        raise BadRequest("x-tuneplex-why: not together with an Idempotency-Key.", code="invalid_why")


def read_why(exchange: Exchange, principal: Principal, version: str) -> Why | None:
    """What is to be noted of a request with this exchange; None if its client does not ask.

    Raises:
        BadRequest: The header says neither 0 nor 1.
        Forbidden: The key may not know: it would learn of replicas, and of how busy they are.
    """
    given = exchange.headers.get(_HEADER)
    if given is None:
        return None
    wished = _WISHES.get(given.strip())
    if wished is None:
        raise BadRequest("x-tuneplex-why: must be 1, or 0.", code="invalid_why")
    if not wished:
        return None
    if principal.key_id != NO_KEY:  # in a fleet without keys everybody may
        demand(principal, (Scope.USAGE, Scope.ADMIN))
    exchange.why = why = Why(exchange, version)
    return why


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
