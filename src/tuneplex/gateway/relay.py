"""A request at an engine: from its dispatch to the one place where it is accounted for."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol, TypedDict

import msgspec

from tuneplex.engines.meters import HiddenUsage, Meter, ResponseUsage, ShownUsage
from tuneplex.engines.rename import Renamer
from tuneplex.engines.usage import ASKABLE, OPTIONS, Aloud, Usage, asking, asking_aloud, estimated_tokens
from tuneplex.errors import ApiError, DeadlineExceeded, Unavailable, UpstreamError, UpstreamTimeout
from tuneplex.gateway.admission import Ticket
from tuneplex.gateway.answers import ErrorAnswer, LongAnswer, StreamAnswer, WholeAnswer, error_event
from tuneplex.gateway.asked import Charge
from tuneplex.gateway.counters import Counters, Outcome, Tally
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import error_lines
from tuneplex.gateway.money import CutStream, spent
from tuneplex.gateway.upstreams import Upstream
from tuneplex.http import Call, Receiver, Unreachable, UpstreamFault
from tuneplex.types import Model, Route, Timeouts

__all__ = ["PASSED", "Ledger", "Order", "Relay", "tell"]

_log = logging.getLogger(__name__)

PASSED = "deadline_exceeded"

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
        charge: What its turn has cost.
        salt: Keeps it apart in the engine's prefix cache, or empty.
        prompt: About how many tokens its prompt has; 0 if nobody has estimated it.
        choices: How many replies it asks for.
        prompts: To how many prompts.
        ticket: What it was let in with, if there are limits.
        deadline: When its reply has to be complete, on the clock of `time.monotonic`.
    """

    route: Route
    model: Model
    shown: str
    stream: bool
    tally: Tally
    charge: Charge
    salt: str = ""
    prompt: int = 0
    choices: int = 1
    prompts: int = 1
    ticket: Ticket | None = None
    deadline: float = math.inf

    @property
    def may_be_cut(self) -> bool:
        """Whether a limit may end its stream."""
        return self.stream and self.ticket is not None and self.ticket.cuts


class Ledger:
    """The requests under way, and what was counted of those that are over.

    Attributes:
        outstanding: Requests under way by replica name.
        relays: The requests under way.
        serial: Numbers them all.
        on_opened: Called with each that is about to be sent.
        on_closed: Called with each that is over.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.outstanding: dict[str, int] = {}
        self.relays: set[Relay] = set()
        self.serial = count()
        self.on_opened: Callable[[Relay], None] = _ignore
        self.on_closed: Callable[[Relay, Outcome], None] = _ignore

    def opened(self, relay: Relay) -> None:
        """A request is about to be sent."""
        name = relay.upstream.replica.name
        self.outstanding[name] = self.outstanding.get(name, 0) + 1
        self.relays.add(relay)
        self.on_opened(relay)

    def closed(self, relay: Relay, outcome: Outcome) -> None:
        """It is over, one way or another."""
        self._leave(relay)
        tally, exchange = relay.order.tally, relay.exchange
        tally.answered(exchange.status or _CLIENT_CLOSED)
        tally.ended(outcome)
        tally.duration_s.observe(relay.elapsed_s())
        tally.received += exchange.received
        tally.sent += exchange.sent
        if relay.used is not None:
            tally.spent(relay.used)
        if relay.order.ticket is not None:
            relay.order.ticket.settle(*_spent(relay))
        self.on_closed(relay, outcome)

    def _leave(self, relay: Relay) -> None:
        self.relays.discard(relay)
        name = relay.upstream.replica.name
        left = self.outstanding[name] - 1
        if left:
            self.outstanding[name] = left
        else:
            del self.outstanding[name]


def _spent(relay: Relay) -> tuple[int, int] | tuple[None, None]:
    """Tokens and money; nothing where nobody knows."""
    used = relay.used
    return (None, None) if used is None else (used.prompt + used.completion, spent(relay.order.model.price, used))


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


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
        aloud: What the client has asked for of the usage; known only of a stream that may be cut.
    """

    chunks = 0
    over = False
    used: Usage | None = None
    aloud: Aloud | None = None
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
        self._since_s = time.monotonic()

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
        if self.order.may_be_cut and self.order.route in ASKABLE:
            self.aloud = asking_aloud(fields)
            if self.aloud is not None and self.upstream.dialect.tells_always:
                self._hides_usage = not self.aloud.usage
                return {**fields, OPTIONS: self.aloud.options}
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
        return OPTIONS.encode() in body and self._ask_without_options(proven=True)

    def _ask_without_options(self, *, proven: bool) -> bool:
        """Send the request again without what we have added, if that can be what the engine did not take.

        Args:
            proven: It was; should the engine answer now, it will not be asked with options any more.
        """
        fields, self._fields = self._fields, None
        if fields is None or self.over:
            return False
        self._hides_usage = False
        self._asked_again = proven
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
        if self.order.may_be_cut:
            self.receive_with(CutStream(self))
        else:
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
        """There is not even a head. Some servers break off at a field that they do not know, instead of saying so.

        Others break off because they end just now. So only the second time proves something.
        """
        telling = self.upstream.telling
        if not isinstance(fault, Unreachable) and self._ask_without_options(proven=telling.broke_off):
            telling.broke_off = True
        else:
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
        """Give up an engine that has been silent or at work for too long; called several times a second."""
        if now >= self.order.deadline:
            error = DeadlineExceeded("The reply was not complete before the request's deadline.", code=PASSED)
            self._fail(error, Outcome.DEADLINE)
            return
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
        """Answer with the error's own status, or as an event where the head has left already; nothing else has."""
        tell(self.exchange, self.order.route, error)

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
        return self.with_prompt(used)

    def with_prompt(self, used: Usage) -> Usage:
        """With an estimate of the prompt, where the engine has not told it."""
        if used.prompt:
            return used
        return msgspec.structs.replace(used, prompt=self.order.prompt or estimated_tokens(self._prompt_bytes))


def tell(exchange: Exchange, route: Route, error: ApiError) -> None:
    """Answer with an error, as long as nothing has been said but comments."""
    if exchange.commented:
        exchange.finish(error_event(route, error, b""))
    else:
        exchange.reply(error.status, error.body(), headers=error_lines(error))
