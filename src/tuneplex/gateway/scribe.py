"""Writes down what becomes of each request: in the journal, from which usage and audit are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Protocol

import msgspec

from tuneplex.gateway.estimate import choices_of
from tuneplex.journal import Closed, Entered, Entry, Opened, Progress, Refused
from tuneplex.journal.spans import span_id

if TYPE_CHECKING:
    from tuneplex.gateway.asked import Asked
    from tuneplex.gateway.attempt import Attempt
    from tuneplex.gateway.counters import Outcome
    from tuneplex.gateway.exchange import Exchange
    from tuneplex.gateway.relay import Relay
    from tuneplex.types import Model

__all__ = ["PROGRESS_S", "PROGRESS_TOKENS", "Scribe", "Writes"]

PROGRESS_TOKENS = 64  # of a stream, after which its progress is written down, about ten times a second
PROGRESS_S = 2.0  # and the longest time between
_SESSIONS = ("prompt_cache_key", "safety_identifier", "user")
_LONGEST_TRACE = 128
_NOBODY_S = 1.0
_MOST_KINDS = 16  # of refusals that are told apart in that time
_OTHER = "other"
_FORBIDDEN = 403
_NULL = b"null"


class Writes(Protocol):
    """Where it is written; `journal.Journal` is the real one.

    Attributes:
        name: Of this one; no other has ever had it.
        lost: Entries that could not be written.
        trouble: Why entries cannot be written now; empty while they can.
    """

    name: str
    lost: int
    trouble: str

    def write(self, entry: Entry) -> bool:
        """Write it; False if it is lost."""

    def when_durable(self, then: Callable[[], object]) -> None:
        """Call this when all that was written up to now is on the disk."""

    def forget(self, then: Callable[[], object]) -> None:
        """Nobody waits for this any more."""

    def retry(self) -> None:
        """Try again to write what could not be."""

    def bound(self, most: int) -> None:
        """Let no more bytes than these lie there unread."""


class Scribe:
    """What the gateway tells its journal.

    Args:
        journal: Where it is written; nowhere if there is none.
        wall: Unix time.

    Attributes:
        secret: Keys the hashes of sessions.
        traces: Each attempt is a span that somebody is told of.
    """

    def __init__(self, journal: Writes | None = None, wall: Callable[[], float] = time.time) -> None:
        self.secret = b""
        self.traces = False
        self._journal = journal
        self._wall = wall
        self._numbers = count(1)
        self._unknown: dict[tuple[int, str], Refused] = {}
        self._unknown_since = 0.0

    def began(self, attempt: Attempt) -> None:
        """An attempt is about to be sent."""
        journal = self._journal
        if journal is None:
            return
        relay = attempt.relay
        asked, exchange, upstream = relay.asked, relay.exchange, attempt.upstream
        exchange.number = exchange.number or next(self._numbers)
        relay.made += 1
        attempt.number = relay.made
        principal, model, replica = asked.principal, asked.model, upstream.replica
        now, elapsed_s = self._wall(), relay.elapsed_s()
        entry = Opened(
            exchange.number,
            attempt.number,
            now,
            now - elapsed_s,
            exchange.request_id.decode(),
            principal.tenant,
            principal.key_id,
            model.name,
            model.version,
            _route(exchange) or asked.route.value,
            asked.stream,
            replica.pool,
            replica.name,
            upstream.engine,
            relay.prompt_tokens(),
            asked.waited_s,
            self._session(asked),
            _trace(exchange),
            choices_of(asked.fields),
        )
        journal.write(entry)

    def span(self, attempt: Attempt) -> int:
        """The id of the span that an attempt is; it need not have begun yet."""
        exchange = attempt.exchange
        exchange.number = exchange.number or next(self._numbers)
        name = self._journal.name if self._journal is not None else ""
        return span_id(name, exchange.number, attempt.number or attempt.relay.made + 1)

    def ended(self, attempt: Attempt) -> None:
        """An attempt has failed, or another one was faster; its request goes on, or is about to be closed."""
        journal = self._journal
        if journal is None or attempt.relay.over:
            return
        relay = attempt.relay
        used = relay.so_far()
        prompt, completion = (0, 0) if used is None else (used.prompt, used.completion)
        outcome = attempt.ended.value
        journal.write(
            Closed(relay.exchange.number, attempt.number, self._wall(), outcome, prompt=prompt, completion=completion)
        )

    def progress(self, relay: Relay) -> None:
        """Tokens of a stream have come."""
        journal = self._journal
        if journal is None:
            return
        used = relay.so_far()
        if used is not None:
            journal.write(Progress(relay.exchange.number, self._wall(), used.prompt, used.completion))

    def closed(self, relay: Relay, outcome: Outcome) -> None:
        """A request that was at an engine is over."""
        journal, used = self._journal, relay.used
        if journal is None or used is None:
            return
        exchange = relay.exchange
        entry = Closed(
            exchange.number,
            0,
            self._wall(),
            outcome.value,
            exchange.status,
            used.prompt,
            used.cached,
            used.completion,
            used.exact,
            relay.first_token_s,
            exchange.sent,
        )
        journal.write(entry)

    def turned_away(self, asked: Asked, status: int, code: str) -> None:
        """A request for a model has got no engine."""
        self._refuse(asked.exchange, asked.model, status, code, stream=asked.stream, waited_s=asked.waited_s)

    def refused(self, exchange: Exchange, status: int, code: str) -> None:
        """A request was refused early."""
        if exchange.principal is None:
            self._refuse_unknown(exchange, status, code)
        elif status == _FORBIDDEN or (exchange.target is not None and exchange.target.route is not None):
            self._refuse(exchange, exchange.model, status, code)

    def entered(self, asked: Asked, then: Callable[[], None]) -> Callable[[], None] | None:
        """Call `then` when it is on the disk that a request is let in; what stops that, or None if it cannot be."""
        journal, model, principal = self._journal, asked.model, asked.principal
        if journal is None:
            return None
        exchange = asked.exchange
        exchange.number = next(self._numbers)
        who = (exchange.request_id.decode(), principal.tenant, principal.key_id)
        if not journal.write(Entered(exchange.number, self._wall(), *who, model.name, model.version, _route(exchange))):
            return None
        journal.when_durable(then)
        return partial(journal.forget, then)

    @property
    def trouble(self) -> str:
        """Why nothing can be written down now; empty while it can, or nobody wants to know."""
        return self._journal.trouble if self._journal is not None else ""

    @property
    def lost(self) -> int:
        """Entries that could not be written."""
        return self._journal.lost if self._journal is not None else 0

    def bound(self, most: int) -> None:
        """Let no more bytes than these lie in the journal unread."""
        if self._journal is not None:
            self._journal.bound(most)

    def tick(self) -> None:
        """Write down what was put together, and what could not be; called several times a second."""
        if self._unknown and not 0 <= self._wall() - self._unknown_since < _NOBODY_S:
            self.close()
        if self._journal is not None:
            self._journal.retry()

    def close(self) -> None:
        """Write down all that was put together."""
        unknown, self._unknown = self._unknown, {}
        if self._journal is not None:
            for refused in unknown.values():
                self._journal.write(refused)

    def _refuse(
        self,
        exchange: Exchange,
        model: Model | None,
        status: int,
        code: str,
        *,
        stream: bool = False,
        waited_s: float = 0.0,
    ) -> None:
        journal, principal = self._journal, exchange.principal
        if journal is None or principal is None:
            return
        now, name, version = self._wall(), "", ""
        if model is not None:
            name, version = model.name, model.version
        entry = Refused(
            now,
            now - (time.monotonic() - exchange.started_s),
            exchange.request_id.decode(),
            principal.tenant,
            principal.key_id,
            name,
            version,
            _route(exchange),
            status,
            code,
            exchange.number,
            stream=stream,
            waited_s=waited_s,
        )
        journal.write(entry)

    def _refuse_unknown(self, exchange: Exchange, status: int, code: str) -> None:
        """Nobody knows who that was, and there may be very many of them: they are put together, second by second."""
        if self._journal is None:
            return
        now, kind = self._wall(), (status, code)
        if len(self._unknown) >= _MOST_KINDS and kind not in self._unknown:
            kind = status, _OTHER
        before = self._unknown.get(kind)
        if not self._unknown:
            self._unknown_since = now
        request_id = exchange.request_id.decode()
        first = before or Refused(now, now, request_id, "", "", "", "", _route(exchange), *kind, count=0)
        self._unknown[kind] = msgspec.structs.replace(first, at=now, count=first.count + 1)

    def _session(self, asked: Asked) -> str:
        given = asked.exchange.headers.get(b"x-session-id")
        if given is None:
            fields = asked.fields
            given = next((bytes(fields[name]) for name in _SESSIONS if name in fields), None)
        if given is None or given == _NULL:
            return ""
        key = blake2b(self.secret).digest()
        return blake2b(asked.principal.tenant.encode() + b"\0" + given, key=key, digest_size=8).hexdigest()


def _route(exchange: Exchange) -> str:
    return exchange.target.label if exchange.target is not None else ""


def _trace(exchange: Exchange) -> str:
    given = exchange.headers.get(b"traceparent", b"")
    return given.decode("latin-1") if len(given) <= _LONGEST_TRACE else ""
