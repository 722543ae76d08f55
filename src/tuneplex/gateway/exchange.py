"""One request of a client and the reply to it."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Protocol

from tuneplex.errors import ApiError
from tuneplex.gateway.counters import Tally
from tuneplex.gateway.heads import EVENT_STREAM, JSON, STATUS_LINES
from tuneplex.gateway.routes import Target
from tuneplex.identity import Principal
from tuneplex.types import Model

__all__ = ["Exchange", "Listener", "Owner"]

_LAST_CHUNK = b"0\r\n\r\n"
_KNOWN_SIZES = 2048
_SIZES = [b"%x\r\n" % size for size in range(_KNOWN_SIZES)]


class Listener(Protocol):
    """Who works on the reply and has to know how the client is."""

    def client_gone(self) -> None:
        """The client has left; nothing can be sent any more."""

    def client_paused(self) -> None:
        """The client reads slower than we write: stop writing."""

    def client_resumed(self) -> None:
        """The client has caught up."""


class Explains(Protocol):
    """Who knows what has become of a request."""

    def told(self) -> bytes:
        """All of it as JSON, in ASCII."""


class Owner(Protocol):
    """The connection, as its exchanges see it."""

    transport: asyncio.Transport
    paused: bool
    peer: str

    @property
    def leaving(self) -> bool:
        """The connection should end with the reply that begins now."""

    def common_headers(self) -> bytes:
        """Header lines that every response carries."""

    def replied(self, exchange: Exchange) -> None:
        """The reply is complete."""


class Exchange:
    """A request, and the means to answer it.

    Answer with `reply`, or with `start`, any number of `write`, and `finish`. The head leaves together with the first
    bytes of the body, so until then nothing has been said and an error can still have a status of its own.

    Attributes:
        method: GET, POST …
        path: Without the query, percent-decoded only where routes need it.
        query: What follows the `?`, as it came.
        headers: By lower-case name; repeated ones are joined with a comma.
        body: Complete when the handler gets the exchange.
        target: What it is for, once that is known.
        principal: Who sends it, once that is known.
        callers: Everybody who might have, when that was found out.
        model: Which model it is for, once that is known.
        number: In the journal; 0 while it is not there.
        tally: Where it is counted, once the model that it is for is known.
        received: Bytes of the body.
        request_id: Goes into `x-request-id`.
        extra: More header lines for every kind of reply (CORS).
        listener: Hears of the client while the reply is under way.
        refusal: Why it is not worth reading the rest of the request.
        gone: The client has left.
        started_s: When its head had come, on the clock of `time.monotonic`.
        modern: The client speaks HTTP/1.1.
        close: The connection ends with this reply.
        complete: All of the request has come.
        expects: The client waits for `100 Continue`.
        status: Of the reply, 0 before it.
        sent: Bytes of the reply's body so far.
        events: The reply that was begun is a stream of events, so whatever else is to be said has to join in.
        why: Explains at the end what has become of the request, if the client wants to know.
    """

    # Defaults live on the class: most of them are never set, and that is what makes an exchange cheap.
    query = ""
    body = b""
    received = 0
    request_id = b""
    extra = b""
    target: Target | None = None
    principal: Principal | None = None
    callers: object = None
    model: Model | None = None
    number = 0
    tally: Tally | None = None
    modern = True  # HTTP/1.1: knows chunks
    close = False
    complete = False
    expects = False
    refusal: ApiError | None = None
    listener: Listener | None = None
    gone = False
    status = 0
    sent = 0
    events = False
    why: Explains | None = None
    _chunked = False
    _head = b""

    def __init__(self, owner: Owner, method: str, path: str, headers: dict[bytes, bytes]) -> None:
        self._owner = owner
        self.transport = owner.transport
        self.method = method
        self.path = path
        self.headers = headers
        self.started_s = time.monotonic()

    # --- the request

    @property
    def peer(self) -> str:
        """The client's address, empty on a Unix socket."""
        return self._owner.peer

    # --- the reply

    @property
    def paused(self) -> bool:
        """The client does not keep up."""
        return self._owner.paused

    @property
    def spoken(self) -> bool:
        """Something of the reply has left, so its status is settled."""
        return self.status != 0 and not self._head

    def reply(self, status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """Send a whole reply of known length."""
        self.status = status
        headers += self._why()
        if status != HTTPStatus.NO_CONTENT:
            headers += b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))
        head = self._render(headers)
        self._head = b""
        self.sent = len(body)
        self.transport.write(head if self.method == "HEAD" else head + body)
        self._owner.replied(self)

    def start(self, status: int, content_type: bytes, headers: bytes = b"") -> None:
        """Prepare the head of a reply of unknown length; it leaves with the first `write`."""
        self.status = status
        self.events = content_type is EVENT_STREAM
        self._chunked = self.modern
        if not self.events:
            headers += self._why()
        if self.modern:
            headers += b"transfer-encoding: chunked\r\n"
        else:
            self.close = True  # the end of the connection is the end of the body
        self._head = self._render(b"content-type: %b\r\n%b" % (content_type, headers))

    def write(self, data: bytes, more: bytes = b"") -> None:
        """Send a piece of the body, which must not be empty; in two parts, if that saves putting them together."""
        size = len(data) + len(more)
        self.sent += size
        if self._chunked:
            data = b"".join((_SIZES[size] if size < _KNOWN_SIZES else b"%x\r\n" % size, data, more, b"\r\n"))
        elif more:
            data += more
        if self._head:
            data = self._head + data
            self._head = b""
        self.transport.write(data)

    def comment(self, text: bytes) -> None:
        """Send a comment, which readers of events pass over; the head must have been started."""
        self.write(b": %b\n\n" % text)

    def finish(self, data: bytes = b"") -> None:
        """Send the last piece, which may be empty, and end the reply."""
        if self.why is not None and self.events:
            data += b": why %b\n\n" % self._told(self.why)
        self.sent += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n%b" % (len(data), data, _LAST_CHUNK) if data else _LAST_CHUNK
        self.transport.write(self._head + data)
        self._head = b""
        self._owner.replied(self)

    def cut(self) -> None:
        """End the connection without ending the reply, so that the client cannot take it for complete."""
        self.close = True
        if self._chunked:
            self.transport.close()
        else:
            self.transport.abort()

    def _why(self) -> bytes:
        return b"" if self.why is None else b"x-tuneplex-why: %b\r\n" % self._told(self.why)

    def _told(self, why: Explains) -> bytes:
        self.why = None  # once, and then nothing keeps what it knows
        return why.told()

    def _render(self, headers: bytes) -> bytes:
        self.close = self.close or self._owner.leaving
        return b"%b%bx-request-id: %b\r\n%b%b%b\r\n" % (
            STATUS_LINES[self.status],
            self._owner.common_headers(),
            self.request_id,
            self.extra,
            headers,
            b"connection: close\r\n" if self.close else b"",
        )
