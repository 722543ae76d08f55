"""What becomes of an engine's reply: one receiver for each kind of it.

`StreamAnswer.reply_data` runs for every chunk of every stream. It searches for a few byte sequences and writes once; no
JSON is parsed there, except that of the one event with the usage.
"""

from __future__ import annotations

import re
from time import monotonic, time
from typing import TYPE_CHECKING

import msgspec

from tuneplex.engines.meters import OPENS, split_events
from tuneplex.engines.rename import StreamRenamer
from tuneplex.engines.usage import Usage, UsageFinder, estimated_tokens, read_document
from tuneplex.errors import ApiError
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import EVENT_STREAM, JSON, error_lines
from tuneplex.http import EventFramer, EventTooLargeError, UpstreamFault, end_of_events
from tuneplex.policy import read_retry_after
from tuneplex.types import Route

if TYPE_CHECKING:
    from tuneplex.gateway.attempt import Attempt
    from tuneplex.gateway.reading import Reading

__all__ = ["PASSED", "STREAM_HEADERS", "ErrorAnswer", "LongAnswer", "StreamAnswer", "WholeAnswer", "tell"]

PASSED = "deadline_exceeded"

_BORDER = b"\n\n"
_NEVER = b"\0\0"  # nothing that ends with it ends with a border
_DONE = b"data: [DONE]\n\n"
_ENDS = b"}\n\n"  # an event that was cut has none
# What an event has that says who speaks, why a choice has ended, or what was used, and brings no token.
_TOKENLESS = (b'"content":""', b'"text":""', b'"delta":{}', b'"choices":[]')
_DELTA = b'.delta"'
STREAM_HEADERS = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
_WHOLE_LIMIT = 1024 * 1024
_ERROR_LIMIT = 64 * 1024
_SEQUENCE = re.compile(rb'"sequence_number":\s*(\d{1,15})\b')
_json = msgspec.json.Decoder(msgspec.Raw)
_LONGEST_WAIT = 6  # digits of seconds


def _unasked(status: int, headers: dict[bytes, bytes]) -> None:
    """A second head for one request cannot come; the connection sees to that."""
    raise AssertionError(f"unexpected head: {status} {headers}")


class StreamAnswer:
    """Server-sent events, passed on as whole events so that a break never leaves half of one.

    Args:
        attempt: Whose reply this is.
        reading: Reads them.
    """

    __slots__ = (
        "_attempt",
        "_begins",
        "_dialect",
        "_end_mark",
        "_ends",
        "_error_mark",
        "_exchange",
        "_framer",
        "_head",
        "_mark",
        "_meter",
        "_over",
        "_reading",
        "_rename",
        "_surplus",
        "_typed",
        "_usual",
    )  # fmt: skip

    def __init__(self, attempt: Attempt, reading: Reading) -> None:
        self._attempt = attempt
        self._exchange = attempt.exchange
        self._dialect = attempt.upstream.dialect
        self._usual = self._dialect.usual
        self._error_mark = self._dialect.error_mark
        self._end_mark = self._dialect.end_mark
        self._typed = attempt.route is Route.RESPONSES
        self._over = False  # its proper end has come,
        self._surplus = False  # and what follows is for nobody
        self._reading = reading
        self._rename = reading.renamer.events
        self._begins = self._ends = _NEVER  # what most events begin and end with,
        self._head = b""  # and with what they begin for the client
        self._framer = EventFramer()
        self._meter = reading.meter
        self._mark = reading.gaps.mark
        if not self._exchange.spoken:
            self._exchange.start(200, EVENT_STREAM, STREAM_HEADERS)

    reply_started = staticmethod(_unasked)

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Pass on the events that are complete."""
        if (
            data.startswith(self._begins)
            and data.endswith(self._ends)
            and not done
            and data.find(b"\n") == len(data) - len(_BORDER)
        ):  # the usual case: one more event of one line
            rest = self._meter.between(data)
            if rest:
                self._mark(monotonic())
                self._exchange.write(self._head, rest)
                return
        self._pass_on(data, done=done)
        if not done:
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Learn how events look that need no closer look, if anything can be told by this one."""
        self._begins = self._ends = _NEVER
        if self._framer.held or not self._attempt.chunks or self._attempt.relay.may_stop:
            return
        pattern = self._meter.pattern(data)
        if pattern is None or not pattern.begins.startswith(self._usual) or not pattern.ends.endswith(_ENDS):
            return
        if self._rename(pattern.ends) == pattern.ends:  # otherwise the model's name comes there
            self._begins, self._ends, self._head = pattern.begins, pattern.ends, self._rename(pattern.shown)

    def _pass_on(self, data: bytes, *, done: bool) -> None:
        attempt = self._attempt
        if data.find(b"\n") == len(data) - 2 and data.endswith(_BORDER) and not self._framer.held:
            if not (data.startswith(self._usual) and data.endswith(_ENDS)):
                data = self._unusual(data)
            shown = self._meter.one(data) if data else b""
        else:
            data = self._whole_events(data)
            if self._are_unusual(data):
                data = self._unusual(data)
            shown = self._meter.many(data)
        if data:
            self._count()
            shown = self._rename(shown)
            if self._brings_token(shown):
                self._mark(monotonic())
            if shown and not done:
                self._exchange.write(shown)
                shown = b""
        if not attempt.over and (done or self._reading.is_over):
            self._end(shown)

    def _are_unusual(self, events: bytes) -> bool:
        if self._typed or self._surplus or self._error_mark in events or self._end_mark in events:
            return True
        return events.count(self._usual) != events.count(_ENDS) or events.count(_ENDS) != events.count(_BORDER)

    def _brings_token(self, shown: bytes) -> bool:
        """Whether a token is in what the client gets, as far as a search can tell."""
        if self._typed:
            return _DELTA in shown
        return shown.count(OPENS) > sum(map(shown.count, _TOKENLESS))

    def _count(self) -> None:
        attempt = self._attempt
        attempt.chunks += 1
        if attempt.chunks == 1:
            attempt.relay.streams(attempt, self, self._reading)

    def reply_failed(self, fault: UpstreamFault) -> None:
        """After the last event this is a normal end; before it, the client must learn of it."""
        if self._over:
            self._exchange.finish()
            self._attempt.completed()
        else:
            self._attempt.broken(fault)

    def closes(self) -> bool:
        """Whether all of it has gone to the client, so that nothing is missing but the end; that is sent then."""
        journal = self._reading.journal
        rest = b"" if self._over or journal is None else self._rename(journal.closing())
        if self._over or rest:
            self._exchange.finish(rest)
            return True
        return False

    def fail(self, error: ApiError) -> None:
        """Tell the client, as the last event of its stream."""
        rest = self._rename(self._meter.rest())
        self._exchange.finish(rest + _error_event(self._attempt.route, error, self._meter.last))

    def used(self) -> Usage:
        """As the stream tells it, or by what has come of it."""
        return self._meter.used()

    def _whole_events(self, data: bytes) -> bytes:
        try:
            return self._framer.feed(data)
        except EventTooLargeError:
            self._attempt.misbehaved("one event is larger than the gateway holds")
            return b""

    def _unusual(self, data: bytes) -> bytes:
        """Look for an error and for the end; what is to be passed on, if it goes on."""
        if self._surplus:
            return b""
        at = self._dialect.error_at(data) if self._error_mark in data else -1
        end = self._dialect.end_of_stream(data) if self._end_mark in data else 0
        if at >= 0 and not 0 < end <= at:
            self._pass_before(data, at)
            self._engine_failed(data[at:])
            return b""
        if end:
            self._surplus = True
            self._usual = b"\0"  # so that all the rest is looked at
            data = data[:end]
        bad = -1 if self._typed or data == _DONE else _nonsense_at(data)
        if bad >= 0:
            self._pass_before(data, bad)
            self._attempt.misbehaved("an event of the stream is not JSON")
            return b""
        self._over = self._over or self._dialect.ended(self._attempt.route, data)
        return data

    def _end(self, shown: bytes) -> None:
        journal = self._reading.journal
        failed = journal is not None and journal.failed
        if self._over or (self._reading.is_over and not failed):
            self._exchange.finish(shown)
            self._attempt.completed()
            return
        if shown:
            self._exchange.write(shown)
        if failed:
            self._attempt.misbehaved("a stream cannot go on by what this engine says")
        else:
            self._attempt.broke_off()

    def _pass_before(self, data: bytes, at: int) -> None:
        """Pass on the events before the one at which something is wrong."""
        before = data[: end_of_events(data, 0, at)]
        if not before:
            return
        shown = self._meter.many(before)
        self._count()
        if shown:
            self._exchange.write(self._rename(shown))

    def _engine_failed(self, event: bytes) -> None:
        """The engine's error is told in our words, and nothing after it."""
        error = self._dialect.stream_error(event, **self._attempt.names())
        self._attempt.engine_failed(error, self._dialect.stream_end(event))


class WholeAnswer:
    """A JSON document that is sent with its length, unless it turns out to be large."""

    __slots__ = ("_attempt", "_framed", "_parts", "_size", "_usage")

    def __init__(self, attempt: Attempt, headers: dict[bytes, bytes]) -> None:
        self._attempt = attempt
        self._framed = b"content-length" in headers or b"transfer-encoding" in headers
        self._parts: list[bytes] = []
        self._size = 0
        self._usage: Usage | None = None

    reply_started = staticmethod(_unasked)

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Collect the document."""
        attempt = self._attempt
        attempt.chunks += 1
        if attempt.chunks == 1:
            attempt.relay.answered(attempt, self)
        if done and not self._parts:
            self._send(data)
            return
        self._parts.append(data)
        self._size += len(data)
        if done:
            self._send(b"".join(self._parts))
        elif self._size > _WHOLE_LIMIT and not self._framed:
            attempt.misbehaved("a large reply has no length, so nobody could tell whether it is complete")
        elif self._size > _WHOLE_LIMIT:
            answer = LongAnswer(attempt)
            attempt.relay.answer = answer
            attempt.relay.begun = True
            attempt.receive_with(answer)
            answer.reply_data(b"".join(self._parts), done=False)

    def reply_failed(self, fault: UpstreamFault) -> None:
        """Nothing has been said yet, so a proper status can be."""
        self._attempt.broken(fault)

    def closes(self) -> bool:
        """Never: it is sent as a whole."""
        return False

    def fail(self, error: ApiError) -> None:
        """Tell the client."""
        tell(self._attempt.exchange, self._attempt.route, error)

    def used(self) -> Usage:
        """As the document tells it, or by its size."""
        return self._usage or _by_size(self._attempt, self._size)

    def _send(self, body: bytes) -> None:
        self._size = len(body)
        try:
            self._usage = read_document(body)
            body.decode()  # only those strings have been read that matter
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._attempt.misbehaved("the reply is not JSON")
            return
        self._attempt.exchange.reply(200, self._attempt.renamer().document(body))
        self._attempt.completed()


class LongAnswer:
    """A JSON document that is too large to keep: passed on as it comes."""

    __slots__ = ("_attempt", "_exchange", "_finder", "_renamer", "_size")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._exchange = attempt.exchange
        self._renamer = StreamRenamer(attempt.renamer())
        self._finder = UsageFinder()
        self._size = 0
        self._exchange.start(200, JSON)

    reply_started = staticmethod(_unasked)

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Pass it on."""
        self._attempt.chunks += 1
        self._size += len(data)
        self._finder.feed(data)
        data = self._renamer.feed(data)
        if done:
            self._finder.flush()
            self._exchange.finish(data + self._renamer.flush())
            self._attempt.completed()
        elif data:
            self._exchange.write(data)

    def reply_failed(self, fault: UpstreamFault) -> None:
        """Half a document has left; only a cut connection tells the client so."""
        self._attempt.broken(fault)

    def closes(self) -> bool:
        """Never: half a document is none."""
        return False

    def fail(self, error: ApiError) -> None:  # noqa: ARG002 - there is no way left to say it
        """Cut the connection."""
        self._exchange.cut()

    def used(self) -> Usage:
        """As the document tells it, or by what has come of it."""
        return self._finder.usage or _by_size(self._attempt, self._size)


class ErrorAnswer:
    """A reply with an error status, put into OpenAI's shape."""

    __slots__ = ("_attempt", "_body", "_retry_after", "_status")

    def __init__(self, attempt: Attempt, status: int, headers: dict[bytes, bytes]) -> None:
        self._attempt = attempt
        self._status = status
        self._retry_after = headers.get(b"retry-after", b"")
        self._body = b""

    reply_started = staticmethod(_unasked)

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Collect as much as can hold a message."""
        self._attempt.chunks += 1
        self._body = (self._body + data)[:_ERROR_LIMIT]
        if done or len(self._body) == _ERROR_LIMIT:
            self._tell()

    def reply_failed(self, fault: UpstreamFault) -> None:  # noqa: ARG002 - the status has come, that is enough
        """The status has come; that is enough to tell."""
        self._tell()

    def _tell(self) -> None:
        attempt = self._attempt
        if attempt.refused_options(self._body):
            return
        error = attempt.upstream.dialect.error(self._status, self._body, **attempt.names())
        given = self._retry_after
        if given.isdigit() and len(given) <= _LONGEST_WAIT and error.retry_after_s is not None:
            error.retry_after_s = int(given)
        retry_after_s = read_retry_after(given, time()) if given else None
        attempt.engine_failed(error, attempt.upstream.dialect.error_end(self._status, self._body), retry_after_s)


def _nonsense_at(events: bytes) -> int:
    """Where the first event begins whose data is neither JSON nor `[DONE]`; -1 when all are well."""
    at = 0
    for event in split_events(events):
        lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
        try:
            if lines and lines != [b"[DONE]"]:
                _json.decode(b"\n".join(lines))
        except msgspec.DecodeError:
            return at
        at += len(event)
    return -1


def _by_size(attempt: Attempt, size: int) -> Usage:
    """What a document of so many bytes has taken, where it does not say so itself."""
    generated = attempt.route is not Route.EMBEDDINGS
    return Usage(0, estimated_tokens(size) if generated else 0, exact=False)


def _error_event(route: Route, error: ApiError, last: bytes) -> bytes:
    """The event that tells a client why its stream ends here.

    Args:
        route: Responses have events with a type and a number, the others have not.
        error: What to tell.
        last: The events that went before.
    """
    if route is not Route.RESPONSES:
        return b"data: %b\n\n" % error.body()
    numbers = _SEQUENCE.findall(last)
    event = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        "error": msgspec.Raw(error.body()[len(b'{"error":') : -1]),
    }
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(event)


def tell(exchange: Exchange, route: Route, error: ApiError) -> None:
    """Answer with an error in the way that is still open: a status, one more event, or a cut."""
    if not exchange.spoken:
        exchange.reply(error.status, error.body(), headers=error_lines(error))
    elif exchange.events:
        exchange.finish(_error_event(route, error, b""))
    else:
        exchange.cut()
