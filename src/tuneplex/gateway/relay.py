"""A request at an engine: from its dispatch to the one place where it is accounted for."""

from __future__ import annotations

import logging
import time
from itertools import count
from typing import Protocol, TypedDict

import msgspec

from tuneplex.engines.meters import HiddenUsage, Meter, ResponseUsage, ShownUsage
from tuneplex.engines.rename import Renamer
from tuneplex.engines.usage import ASKABLE, OPTIONS, Usage, asking, estimated_tokens
from tuneplex.errors import ApiError, Unavailable, UpstreamError, UpstreamTimeout
from tuneplex.gateway.admission import Ticket
from tuneplex.gateway.answers import ErrorAnswer, LongAnswer, StreamAnswer, WholeAnswer
from tuneplex.gateway.counters import Counters, Outcome, Tally
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import error_lines
from tuneplex.gateway.upstreams import Upstream
from tuneplex.http import Call, Receiver, Unreachable, UpstreamFault
from tuneplex.types import Model, Route, Timeouts

__all__ = ["Ledger", "Order", "Relay"]

_log = logging.getLogger(__name__)

_OK = 200
_NOTHING = Usage(0, 0)
_PROMPTS = ("messages", "prompt", "input")
_REFUSED = frozenset({Outcome.UNREACHABLE, Outcome.ENGINE_ERROR})
_CLIENT_CLOSED = 499  # nginx's word for it, used for counting only


class Order(msgspec.Struct, frozen=True):
    """What is to be asked of an engine.

    Attributes:
        route: By which route.
        model: What for.
        shown: The name that the client shall see in the reply.
        stream: Whether events are expected.
        tally: Where it is counted.
        salt: Keeps it apart in the engine's prefix cache, or empty.
        prompt: About how many tokens its prompt has; 0 if nobody has estimated it.
        ticket: What it was let in with, if there are limits.
    """

    route: Route
    model: Model
    shown: str
    stream: bool
    tally: Tally
    salt: str = ""
    prompt: int = 0
    ticket: Ticket | None = None


class Ledger:
    """The requests under way, and what was counted of those that are over.

    Attributes:
        outstanding: Requests under way by replica name.
        relays: The requests under way.
        serial: Numbers them all.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.outstanding: dict[str, int] = {}
        self.relays: set[Relay] = set()
        self.serial = count()

    def opened(self, relay: Relay) -> None:
        """A request is about to be sent."""
        name = relay.upstream.replica.name
        self.outstanding[name] = self.outstanding.get(name, 0) + 1
        self.relays.add(relay)

    def closed(self, relay: Relay, outcome: Outcome) -> None:
        """It is over, one way or another."""
        self.relays.discard(relay)
        name = relay.upstream.replica.name
        left = self.outstanding[name] - 1
        if left:
            self.outstanding[name] = left
        else:
            del self.outstanding[name]
        tally, exchange = relay.order.tally, relay.exchange
        tally.answered(exchange.status or _CLIENT_CLOSED)
        tally.ended(outcome)
        tally.duration_s.observe(relay.elapsed_s())
        tally.received += exchange.received
        tally.sent += exchange.sent
        if relay.used is not None:
            tally.spent(relay.used)
        if relay.order.ticket is not None:
            relay.order.ticket.settle(None if relay.used is None else relay.used.prompt + relay.used.completion)


class _Answer(Receiver, Protocol):
    def fail(self, error: ApiError) -> None:
        """Tell the client that its reply ends with an error."""

    def used(self) -> Usage:
        """What the request has used up to now; without its prompt where the engine did not tell that."""


class _Names(TypedDict):
    name: str
    shown: str


class Relay:
    """Sends one request to one replica and its reply to the client.

    Everything ends in `close`, exactly once, whichever side ends it.

    Attributes:
        chunks: Pieces of the reply's body so far.
        over: `close` has been called.
        used: The tokens that it took; known once it is over.
    """

    chunks = 0
    over = False
    used: Usage | None = None
    _answer: _Answer | None = None
    _call: Call | None = None
    _fields: dict[str, msgspec.Raw] | None = None  # to ask once more without what the engine may refuse
    _prompt_bytes = 0
    _hides_usage = False
    _asked_again = False
    _seen = 0

    def __init__(
        self, ledger: Ledger, exchange: Exchange, order: Order, upstream: Upstream, timeouts: Timeouts
    ) -> None:
        self.exchange = exchange
        self.order = order
        self.upstream = upstream
        self._ledger = ledger
        self._timeouts = timeouts
        self._name = upstream.replica.serves[order.model.version]
        self._since_s = exchange.started_s

    def start(self, fields: dict[str, msgspec.Raw]) -> None:
        """Send the request with these fields in its body; everything else happens by callbacks.

        Raises:
            BadRequest: One of the fields is wrong; nothing was sent.
        """
        request = self._request(self._asking(fields))
        self._prompt_bytes = sum(len(fields[name]) for name in _PROMPTS if name in fields)
        self.exchange.body = b""  # from here on the call keeps it, as long as it may be sent again
        self._ledger.opened(self)
        self.exchange.listener = self
        self._send(request)

    def _request(self, fields: dict[str, msgspec.Raw]) -> bytes:
        order, upstream = self.order, self.upstream
        body = upstream.dialect.encode(fields, name=self._name, salt=order.salt)
        # Engines want ids that are unique, which the client's own need not be.
        request_id = b"%b-%x" % (self.exchange.request_id, next(self._ledger.serial))
        return upstream.request(order.route, request_id, body)

    def _send(self, request: bytes) -> None:
        self._call = self.upstream.pool.send(request, self, connect_timeout_s=self._timeouts.connect_s)

    # --- the usage of streams

    def _asking(self, fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """The request's fields, with which the engine also tells what the stream has used."""
        telling = self.upstream.telling
        if not self.order.stream or self.order.route not in ASKABLE or telling.takes_options is False:
            return fields
        options = asking(fields)
        if options is None:
            return fields
        self._hides_usage = True
        if telling.takes_options is None:
            self._fields = fields
        return {**fields, OPTIONS: options}

    def refused_options(self, body: bytes) -> bool:
        """Whether the engine's error is about the one field that we have added; the request is sent again without.

        Args:
            body: Of the engine's reply.
        """
        fields, self._fields = self._fields, None
        if fields is None or OPTIONS.encode() not in body or self.over:
            return False
        self._hides_usage = False
        self._asked_again = True
        if self._call is not None:
            self._call.abort()  # its reply may not be over yet
        self._answer = None
        self.chunks = self._seen = 0
        self._since_s = time.monotonic()
        self._send(self._request(fields))
        return True

    def meter(self) -> Meter:
        """Counts this stream."""
        if self.order.route is Route.RESPONSES:
            return ResponseUsage()
        return HiddenUsage(self.upstream.telling) if self._hides_usage else ShownUsage()

    # --- what the engine says

    def reply_started(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Choose how to treat the reply."""
        if status != _OK:
            self.receive_with(ErrorAnswer(self, status, headers))
            return
        wanted = b"text/event-stream" if self.order.stream else b"application/json"
        coded = headers.get(b"content-encoding", b"identity") != b"identity"
        if not headers.get(b"content-type", b"").lower().startswith(wanted) or coded:
            self.misbehaved("the reply is of another type than was asked for")
            return
        self._fields = None
        if self._hides_usage or self._asked_again:
            self.upstream.telling.takes_options = self._hides_usage
        self.receive_with(StreamAnswer(self) if self.order.stream else WholeAnswer(self, headers))

    def receive_with(self, answer: StreamAnswer | WholeAnswer | LongAnswer | ErrorAnswer) -> None:
        """Let `answer` have the rest of the reply."""
        self._answer = answer
        if self._call is not None:
            self._call.receiver = answer
            if self.exchange.paused:
                self._call.pause()

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Never comes before the head; the head sets another receiver."""
        raise AssertionError(f"{len(data)} bytes before the head, {done=}")

    def reply_failed(self, fault: UpstreamFault) -> None:
        """There is not even a head."""
        self.broken(fault)

    # --- what the answers find

    def names(self) -> _Names:
        """The engine's name of the model and the client's."""
        return {"name": self._name, "shown": self.order.shown}

    def renamer(self) -> Renamer:
        """For this reply."""
        return self.upstream.dialect.renamer(name=self._name, shown=self.order.shown)

    def first_token(self) -> None:
        """The first event of a stream is on its way."""
        self.order.tally.first_token_s.observe(self.elapsed_s())

    def elapsed_s(self) -> float:
        """Since the request came."""
        return time.monotonic() - self.exchange.started_s

    def broken(self, fault: UpstreamFault) -> None:
        """The connection failed."""
        _log.warning("request %s at %s: %s", self.exchange.request_id.decode(), self.upstream.replica.name, fault)
        if isinstance(fault, Unreachable):
            error: ApiError = Unavailable("The engine cannot be reached.", code="engine_unreachable", retry_after_s=1)
            self._fail(error, Outcome.UNREACHABLE)
        else:
            self._fail(UpstreamError("The engine broke off its reply.", code="engine_broke_off"), Outcome.BROKEN)

    def misbehaved(self, how: str) -> None:
        """The engine's reply is not one that can be passed on."""
        _log.warning("request %s at %s: %s", self.exchange.request_id.decode(), self.upstream.replica.name, how)
        error = UpstreamError("The engine sent a reply that is not valid.", code="engine_reply_invalid")
        self._fail(error, Outcome.BROKEN)

    def engine_failed(self, error: ApiError) -> None:
        """The engine itself reports an error."""
        for secret in self.upstream.secrets:
            error.message = error.message.replace(secret, "…")
        self._fail(error, Outcome.ENGINE_ERROR)

    # --- what the client does

    def client_gone(self) -> None:
        """Stop the engine at once."""
        self.close(Outcome.CLIENT_GONE)

    def client_paused(self) -> None:
        """Let the engine wait."""
        if self._call is not None:
            self._call.pause()

    def client_resumed(self) -> None:
        """Go on."""
        if self._call is not None:
            self._call.resume()

    # --- time

    def tick(self, now: float) -> None:
        """Give up an engine that has been silent for too long; called several times a second."""
        if self._seen != self.chunks or self.exchange.paused:
            self._seen = self.chunks
            self._since_s = now
            return
        limit_s = self._timeouts.between_chunks_s if self.chunks else self._timeouts.first_byte_s
        if now - self._since_s < limit_s:
            return
        what = "the next part of its reply" if self.chunks else "its reply"
        message = f"The engine did not send {what} within {limit_s:g} seconds."
        code = "engine_stalled" if self.chunks else "engine_timeout"
        self._fail(UpstreamTimeout(message, code=code), Outcome.TIMEOUT)

    # --- the end

    def _fail(self, error: ApiError, outcome: Outcome) -> None:
        """Tell the client in the way that is still open."""
        if self.over:
            return
        try:
            if self._answer is not None and self.exchange.spoken:
                self._answer.fail(error)
            else:
                self.refuse(error)
        finally:
            self.close(outcome)

    def refuse(self, error: ApiError) -> None:
        """Answer with the error's own status; possible as long as nothing has been said."""
        self.exchange.reply(error.status, error.body(), headers=error_lines(error))

    def close(self, outcome: Outcome) -> None:
        """Release the replica and account for the request: the one place for it."""
        if self.over:
            return
        self.over = True
        self.used = self._used(outcome)
        call, self._call, self._answer = self._call, None, None
        if call is not None:
            call.abort()
        self.exchange.listener = None
        self._ledger.closed(self, outcome)

    def _used(self, outcome: Outcome) -> Usage:
        """What the engine has told, or else what is known: it has got the prompt, whatever became of that."""
        used = Usage(0, 0, exact=False) if self._answer is None else self._answer.used()
        if used.exact or used.prompt:
            return used
        if outcome in _REFUSED and not used.completion:
            return _NOTHING
        prompt = self.order.prompt or estimated_tokens(self._prompt_bytes)
        return msgspec.structs.replace(used, prompt=prompt)
