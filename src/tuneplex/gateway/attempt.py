"""One attempt at a request: it is sent to one replica, and its reply is received."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import msgspec

from tuneplex.engines.continuing import asking_ids
from tuneplex.engines.rename import Renamer
from tuneplex.engines.usage import ASKABLE, OPTIONS, Aloud, asking, asking_aloud
from tuneplex.errors import ApiError, Unavailable, UpstreamError, UpstreamTimeout
from tuneplex.gateway.answers import ErrorAnswer, LongAnswer, StreamAnswer, WholeAnswer
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.money import CutStream
from tuneplex.gateway.reading import reading_of
from tuneplex.gateway.traces import trace_lines
from tuneplex.gateway.upstreams import Upstream
from tuneplex.http import Broken, Call, Unreachable, UpstreamFault
from tuneplex.log import get_logger
from tuneplex.policy import End, verdict
from tuneplex.types import Timeouts

if TYPE_CHECKING:
    from tuneplex.gateway.relay import Relay

__all__ = ["Attempt"]

_log = get_logger(__name__)

_OK = 200
_WELL = verdict(End.COMPLETE)


class _Names(TypedDict):
    name: str
    shown: str


class Attempt:
    """Sends a request to one replica and its reply on to the client.

    It ends in `end`, exactly once; what becomes of the request then is up to its `Relay`.

    Attributes:
        route: By which route the replica is asked.
        chunks: Pieces of the reply's body so far, without the usual events of a stream: `Gaps` has those.
        answers: The first part of an answer has come.
        over: `end` has been called.
        ended: How it has ended.
        verdict: What follows from that.
        era: Of its replica's breaker, when it began.
        asks_ids: The engine tells the ids of all tokens.
        hides_usage: It tells the usage, which the client has not asked for.
        number: Which attempt at its request it is, from 1; 0 where nothing is written down.
        aloud: What the client has asked for of the usage; known only of a stream that may be cut.
    """

    chunks = 0
    answers = False
    over = False
    ended = End.STOPPED
    verdict = verdict(End.STOPPED)
    era = 0
    number = 0
    aloud: Aloud | None = None
    asks_ids = False
    hides_usage = False
    _call: Call | None = None
    _fields: dict[str, msgspec.Raw] | None = None  # to ask once more without what the engine may refuse
    _asked_again = False
    _seen = 0
    _heard: float | None = None

    def __init__(self, relay: Relay, upstream: Upstream, timeouts: Timeouts) -> None:
        self.relay = relay
        self.asked = relay.asked
        self.exchange = relay.exchange
        self.upstream = upstream
        self.route = relay.asked.route
        self._timeouts = timeouts
        self._ledger = relay.ledger
        self._name = upstream.replica.serves[relay.asked.model.version]
        self.since_s = time.monotonic()

    def start(self, fields: dict[str, msgspec.Raw]) -> None:
        """Send the request with these fields in its body; everything else happens by callbacks.

        Raises:
            BadRequest: One of the fields is wrong; nothing was sent.
        """
        request = self._request(self._asking(self._asking_ids(fields)))
        self._ledger.began(self)
        self._send(request)

    def _request(self, fields: dict[str, msgspec.Raw]) -> bytes:
        upstream = self.upstream
        body = upstream.dialect.encode(fields, name=self._name, salt=self.asked.principal.cache_salt)
        # Engines want ids that are unique, which the client's own need not be.
        request_id = b"%b-%x" % (self.exchange.request_id, next(self._ledger.serial))
        scribe = self._ledger.scribe
        span = partial(scribe.span, self) if scribe.traces else None
        return upstream.request(self.route, request_id, body, trace_lines(self.exchange.headers, span))

    def _send(self, request: bytes) -> None:
        self._call = self.upstream.pool.send(request, self, connect_timeout_s=self._timeouts.connect_s)

    def end(self) -> None:
        """The replica is to do nothing more."""
        if self.over:
            return
        self.over = True
        call, self._call = self._call, None
        if call is not None:
            call.abort()
        self._ledger.ended(self)

    # --- ids of tokens, and the usage of streams

    def _asking_ids(self, fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """The request's fields, with which the engine also tells the tokens by which its stream can be continued."""
        if self.relay.terms is None or not self.upstream.dialect.continues:
            return fields
        self.asks_ids = True
        return asking_ids(fields)

    def _asking(self, fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """The request's fields, with which the engine also tells what the stream has used."""
        telling, asked = self.upstream.telling, self.asked
        if asked.may_be_cut and self.route in ASKABLE:
            self.aloud = asking_aloud(fields)
            if self.aloud is not None and self.upstream.dialect.tells_always:
                self.hides_usage = not self.aloud.usage
                return {**fields, OPTIONS: self.aloud.options}
        if not asked.stream or self.route not in ASKABLE or telling.takes_options is False:
            return fields
        options = asking(fields)
        if options is None:
            return fields
        self.hides_usage = True
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
        self.hides_usage = False
        self._asked_again = proven
        if self._call is not None:
            self._call.abort()  # its reply may not be over yet
        self.chunks = self._seen = 0
        self.since_s = time.monotonic()
        self._send(self._request(fields))
        return True

    # --- what the engine says

    def reply_started(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Choose how to treat the reply."""
        if status != _OK:
            self.receive_with(ErrorAnswer(self, status, headers))
            return
        wanted = b"text/event-stream" if self.asked.stream else b"application/json"
        coded = headers.get(b"content-encoding", b"identity") != b"identity"
        if not headers.get(b"content-type", b"").lower().startswith(wanted) or coded:
            self.misbehaved("the reply is of another type than was asked for")
            return
        self._fields = None
        if self.hides_usage or self._asked_again:
            self.upstream.telling.takes_options = self.hides_usage
        self.receive_with(self._stream() if self.asked.stream else WholeAnswer(self, headers))

    def _stream(self) -> StreamAnswer:
        """Receives the events of this attempt, which may go on where another one broke off."""
        reading = self.relay.reading or reading_of(self)
        return StreamAnswer(self, reading) if reading.watch is None else CutStream(self, reading, reading.watch)

    def receive_with(self, answer: StreamAnswer | WholeAnswer | LongAnswer | ErrorAnswer) -> None:
        """Let `answer` have the rest of the reply."""
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
        return {"name": self._name, "shown": self.asked.shown}

    def renamer(self) -> Renamer:
        """For this reply."""
        return self.upstream.dialect.renamer(name=self._name, shown=self.asked.shown)

    def completed(self) -> None:
        """All of the reply has come, and gone to the client."""
        self.ended, self.verdict = End.COMPLETE, _WELL
        self.relay.close(Outcome.COMPLETE)

    def broken(self, fault: UpstreamFault) -> None:
        """The connection failed."""
        self._warn(str(fault))
        if isinstance(fault, Unreachable):
            error: ApiError = Unavailable("The engine cannot be reached.", code="engine_unreachable", retry_after_s=1)
            self._fail(error, End.UNREACHABLE)
        else:
            self._fail(UpstreamError("The engine broke off its reply.", code="engine_broke_off"), End.BROKEN)

    def broke_off(self) -> None:
        """The reply has ended in an orderly way, and before its end."""
        self.broken(Broken("the stream ended before its last event"))

    def misbehaved(self, how: str) -> None:
        """The engine's reply is not one that can be passed on."""
        self._warn(how)
        error = UpstreamError("The engine sent a reply that is not valid.", code="engine_reply_invalid")
        self._fail(error, End.INVALID)

    def engine_failed(self, error: ApiError, end: End, retry_after_s: float | None = None) -> None:
        """The engine itself reports an error.

        Args:
            error: What the client is told, if it is told.
            end: What kind of an error that is.
            retry_after_s: When it wants to be asked again, if it has said so.
        """
        for secret in self.upstream.secrets:
            error.message = error.message.replace(secret, "…")
        self._fail(error, end, retry_after_s)

    def leave(self) -> None:
        """Its replica goes away, and it can be made elsewhere."""
        self._fail(Unavailable("The engine is stopping.", code="engine_stopping", retry_after_s=1), End.STOPPED)

    def _warn(self, what: str) -> None:
        request_id, replica = self.exchange.request_id.decode(), self.upstream.replica.name
        adapter = self.asked.model.name
        _log.warning("an engine fails a request", request_id=request_id, replica=replica, adapter=adapter, why=what)

    def _fail(self, error: ApiError, end: End, retry_after_s: float | None = None) -> None:
        if not self.over:
            self.ended, self.verdict = end, verdict(end, retry_after_s)
            self.relay.failed(self, error)

    # --- the client, and time

    def pause(self) -> None:
        """Let the engine wait."""
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Go on."""
        if self._call is not None:
            self._call.resume()

    def tick(self, now: float) -> None:
        """Give up an engine that has been silent for too long; called several times a second."""
        reading = self.relay.reading
        heard = reading.gaps.last if reading is not None and self.answers else None
        if self._seen != self.chunks or self._heard != heard or self.exchange.paused:
            self._seen, self._heard = self.chunks, heard
            self.since_s = now
            return
        limit_s = self._timeouts.between_chunks_s if self.chunks else self._timeouts.first_byte_s
        if now - self.since_s < limit_s:
            return
        what = "the next part of its reply" if self.chunks else "its reply"
        message = f"The engine did not send {what} within {limit_s:g} seconds."
        code, end = ("engine_stalled", End.STALLED) if self.chunks else ("engine_timeout", End.SILENT)
        self._fail(UpstreamTimeout(message, code=code), end)
