"""The client's connection: uvicorn's protocol class of the gateway, on httptools.

Reading never pauses while a reply is under way, because only a read shows that the client has left. What a client sends
meanwhile (pipelining) is kept unparsed up to a bound; a client that sends more gets its current reply and is closed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools
import msgspec
from uvicorn import Config
from uvicorn.server import ServerState

from tuneplex.errors import ApiError, BadRequest, HeadTooLarge, RequestTimeout, TooLarge
from tuneplex.gateway.exchange import Exchange

__all__ = ["ClientConnection", "ConnectionLimits", "Handler"]


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What a client may take of the gateway's time and memory; seconds and bytes.

    Attributes:
        head_s: For the head of a request, from its first byte.
        body_s: Between two pieces of a request's body.
        idle_s: Between two requests.
        stalled_s: For a client that reads nothing of a reply.
        linger_s: For the rest of a request that was refused before its end.
        head_bytes: Request line and headers.
        header_count: Number of different headers.
        pipelined_bytes: Kept of the next requests while a reply is under way.
    """

    head_s: float = 20.0
    body_s: float = 30.0
    idle_s: float = 75.0
    stalled_s: float = 300.0
    linger_s: float = 2.0
    head_bytes: int = 64 * 1024
    header_count: int = 128
    pipelined_bytes: int = 64 * 1024


class Handler(Protocol):
    """Who answers requests."""

    @property
    def max_body(self) -> int:
        """Bytes of a request body that are accepted."""

    def head(self, exchange: Exchange) -> None:
        """The head of a request is complete.

        Raises:
            ApiError: The body need not be read.
        """

    def handle(self, exchange: Exchange) -> None:
        """The request is complete: answer it, now or later."""

    def refuse(self, exchange: Exchange, error: ApiError) -> None:
        """Answer with an error."""


def _soon(work: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_soon(work)


_SMALL_BODY = 64 * 1024
_FRAMING = 8
_UPGRADING = frozenset({b"upgrade", b"connection"})
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


class ClientConnection(asyncio.Protocol):
    """One client connection; the constructor's other arguments are uvicorn's contract.

    Args:
        handler: Answers.
        limits: Towards the client.
        leave: Once it is set, the connection ends with its next reply. An idle one stays open until then, because a
            request may be on its way.
        soon: Calls something a little later, on the event loop.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits,
        *,
        config: Config,  # noqa: ARG002 - uvicorn passes it to every protocol class
        server_state: ServerState,
        app_state: dict[str, Any] | None = None,  # noqa: ARG002 - the same
        _loop: asyncio.AbstractEventLoop | None = None,
        leave: asyncio.Event | None = None,
        soon: Callable[[Callable[[], None]], object] = _soon,
    ) -> None:
        self._soon = soon
        self._leave = leave or asyncio.Event()
        self.transport = cast("asyncio.Transport", None)
        self.paused = False
        self.peer = ""
        self._handler = handler
        self._limits = limits
        self._state = server_state
        self._queue: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._backlog = b""
        self._advancing = False
        self._closing = False  # after the current reply
        self._deaf = False  # whatever else comes is ignored
        self._deadline = 0.0
        self._fed = 0
        self._received = 0  # bytes of the body of the incomplete request,
        self._counted = 0  # and the pieces of it that are counted there
        self._dated: tuple[object, bytes] = (None, b"")
        self._new_parser()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the connections that uvicorn waits for at its end."""
        self.transport = cast("asyncio.Transport", transport)
        self._state.connections.add(cast("Any", self))
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._deadline = time.monotonic() + self._limits.head_s

    def data_received(self, data: bytes) -> None:
        """Parse, or keep for later while a reply is under way."""
        if self._deaf:
            return
        if self._current is None:
            self._feed(data)
            self._advance()
        elif len(self._backlog) + len(data) <= self._limits.pipelined_bytes:
            self._backlog += data
        else:
            self._backlog = b""
            self._closing = self._deaf = True

    def eof_received(self) -> None:
        """A client that stops sending has left; replies that are already written still go out."""
        if self._current is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why does not matter
        """Tell whoever works on a reply."""
        self._state.connections.discard(cast("Any", self))
        self._deaf = True
        self._deadline = 0.0
        self._queue.clear()
        self._backlog = b""
        exchange, self._current = self._current, None
        if exchange is not None:
            exchange.gone = True
            if exchange.listener is not None:
                exchange.listener.client_gone()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.paused = True
        self._deadline = time.monotonic() + self._limits.stalled_s
        if self._current is not None and self._current.listener is not None:
            self._current.listener.client_paused()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.paused = False
        self._deadline = 0.0 if self._current is not None else time.monotonic() + self._limits.idle_s
        if self._current is not None and self._current.listener is not None:
            self._current.listener.client_resumed()

    # --- uvicorn's side

    def shutdown(self) -> None:
        """Finish the current reply, then close."""
        self._closing = True
        if self._current is None:
            self.transport.close()

    # --- time

    def tick(self, now: float) -> None:
        """Act on a deadline that has passed; called every second or so."""
        leaving = self.transport.is_closing()
        if leaving and not self._deadline:
            self._deadline = now + self._limits.stalled_s  # its reply was cut, and it does not read the rest
        if not self._deadline or now < self._deadline:
            return
        self._deadline = 0.0
        if self.paused or self._deaf or leaving:
            self.transport.abort()
        elif self._queue or self._in_head:
            self._spoil(RequestTimeout("The request did not arrive in time."))
            self._advance()
        else:
            self.transport.close()

    # --- requests, in their order

    def _feed(self, data: bytes) -> None:
        while data:
            under_way = self._in_head or self._exchange is not None
            self._fed = len(data)
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                data = b""
                if not (self._queue and self._queue[-1].close and self._queue[-1].complete):
                    self._spoil(BadRequest("This is not a valid HTTP request."))
                self._deaf = True
            if self._in_head or self._exchange is not None:
                self._bound(self._fed if under_way else 1)

    def _bound(self, size: int) -> None:
        """Limit an incomplete request: its body, and what it sends besides: head, framing of chunks, trailers."""
        exchange, body = self._exchange, self._body
        if exchange is not None:
            self._received += sum(len(piece) for piece in body[self._counted :])
            self._counted = len(body)
            if self._received > self._handler.max_body and exchange.refusal is None:
                exchange.refusal = self._too_large()
            if exchange.refusal is not None:
                body.clear()
                self._counted = 0
        self._overhead += size
        # A chunk of one byte has six bytes of framing.
        if self._overhead - self._received > self._limits.head_bytes + _FRAMING * self._received and not self._deaf:
            self._spoil(HeadTooLarge("The request has too much besides its body."))

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Read a request that offers another protocol (`Upgrade: h2c`) as if it did not, as HTTP allows."""
        if self._parser.get_method() == b"CONNECT":
            self._spoil(BadRequest("CONNECT is not supported."))
            return b""
        parser = self._parser
        lines = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), self._url, parser.get_http_version().encode())]
        for name, value in self._headers.items():
            if name.lower() not in _UPGRADING:
                lines.append(b"%b: %b\r\n" % (name, value))
            elif b"close" in map(bytes.strip, value.lower().split(b",")):
                lines.append(b"connection: close\r\n")
        self._new_parser()
        return b"".join(lines) + b"\r\n" + rest

    def _spoil(self, error: ApiError) -> None:
        """The input makes no sense from here on: answer so in its turn, then close."""
        self._deaf = True
        if not self._queue or self._queue[-1].complete:
            self._queue.append(Exchange(self, "", "", {}))
        exchange = self._queue[-1]
        exchange.close = True
        if exchange.refusal is None:
            exchange.refusal = error

    def _advance(self) -> None:
        """Answer the next request, if it is complete or not worth waiting for."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._current is None and self._queue and not self._closing:
                exchange = self._queue[0]
                if not exchange.complete and not self._hopeless(exchange):
                    self._wait_for_body(exchange)
                    return
                self._queue.popleft()
                self._answer(exchange)
        finally:
            self._advancing = False
        if self._current is None and self._in_head and not self._deadline:
            self._deadline = time.monotonic() + self._limits.head_s

    def _answer(self, exchange: Exchange) -> None:
        self._current = exchange
        self._deadline = 0.0
        if exchange.refusal is None:
            self._handler.handle(exchange)
            return
        if not exchange.complete:
            exchange.close = self._deaf = True
        self._handler.refuse(exchange, exchange.refusal)

    def _hopeless(self, exchange: Exchange) -> bool:
        """Refused, and more of its body comes than is worth reading to keep the connection."""
        if exchange.refusal is None:
            return False
        if self._deaf or exchange.expects or b"content-length" not in exchange.headers:
            return True
        return int(exchange.headers[b"content-length"]) > _SMALL_BODY

    def _wait_for_body(self, exchange: Exchange) -> None:
        if exchange.expects:
            exchange.expects = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._deadline = time.monotonic() + self._limits.body_s

    # --- what exchanges need

    @property
    def leaving(self) -> bool:
        """The connection should end with the reply that begins now; not before what has come already is answered."""
        return self._leave.is_set() and not (self._queue or self._backlog or self._in_head)

    def common_headers(self) -> bytes:
        """The `date` line, which uvicorn renews each second."""
        headers = self._state.default_headers
        if self._dated[0] is not headers:
            self._dated = (headers, b"".join(b"%b: %b\r\n" % header for header in headers))
        return self._dated[1]

    def replied(self, exchange: Exchange) -> None:
        """Go on with the next request, or close."""
        self._current = None
        exchange.listener = None
        if exchange.close or self._closing:
            self._end(unread=not exchange.complete)
            return
        self._deadline = time.monotonic() + (self._limits.stalled_s if self.paused else self._limits.idle_s)
        if self._backlog and not (self._queue and self._queue[0].complete):
            data, self._backlog = self._backlog, b""
            self._feed(data)
        if self._queue and not self._advancing:
            # Not from within: this reply may be due to another connection's request, which must not wait for what
            # comes next here, nor for whoever gives way to that, and so on through all connections.
            self._soon(self._advance)
        else:
            self._advance()

    def _end(self, *, unread: bool) -> None:
        """Close. A client that still sends would miss the reply by the reset that follows, so let it finish."""
        self._deaf = self._closing = True
        limits = self._limits
        if unread and self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
            self._deadline = time.monotonic() + limits.linger_s
        else:
            self.transport.close()
            self._deadline = time.monotonic() + limits.stalled_s  # for the client that reads no more

    # --- the parser's side

    def _new_parser(self) -> None:
        self._url = b""
        self._in_head = False
        self._overhead = 0
        self._exchange: Exchange | None = None
        self._received = 0
        self._counted = 0
        # Found by the parser as its callbacks: no Python frame for each header and piece. Of repeated headers the last
        # counts; those for which that would matter (the two that tell the body's length) the parser refuses itself.
        self._headers: dict[bytes, bytes] = {}
        self.on_header = self._headers.__setitem__
        self._body: list[bytes] = []
        self.on_body = self._body.append
        self._parser = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        """A piece of the target: a request begins, or goes on."""
        if not self._in_head:
            self._in_head = True
            self._overhead = self._received = self._counted = 0
            self._deadline = 0.0  # the one for idle connections; `_advance` sets the next
            self._headers.clear()  # trailers of the request before
            self._url = url
        else:
            self._url += url

    def on_headers_complete(self) -> None:
        """Make the exchange and ask the handler whether to go on."""
        self._in_head = False
        parser = self._parser
        if parser.should_upgrade():
            return
        headers = {name.lower(): value for name, value in self._headers.items()}
        path, query = _split(self._url)
        self._exchange = exchange = Exchange(self, parser.get_method().decode(), path, headers)
        if query:
            exchange.query = query
        if not parser.should_keep_alive():
            exchange.close = True
        if (exchange.close or b"connection" in headers) and parser.get_http_version() != "1.1":
            exchange.modern = False
            exchange.close = True
        self._queue.append(exchange)
        try:
            self._check(exchange)
            self._handler.head(exchange)
        except ApiError as error:
            exchange.refusal = error

    def _check(self, exchange: Exchange) -> None:
        headers = exchange.headers
        limits = self._limits
        if b"expect" in headers and exchange.modern:
            exchange.expects = headers[b"expect"].lower() == b"100-continue"
        if self._fed > limits.head_bytes or self._overhead:  # otherwise it came in one piece, which is small
            size = len(self._url) + sum(map(len, (*headers, *headers.values())))
            if size > limits.head_bytes:
                raise HeadTooLarge("The request's head is too large.")
        if len(headers) > limits.header_count:
            raise HeadTooLarge("The request has too many headers.")
        if b"host" not in headers and exchange.modern:
            raise BadRequest("A request needs a host header.")
        if b"content-length" in headers:
            if int(headers[b"content-length"]) > self._handler.max_body:
                raise self._too_large()
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise BadRequest("Of transfer encodings only `chunked` is supported.")

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The request's body is over the limit of {self._handler.max_body} bytes.")

    def on_message_complete(self) -> None:
        """The request is complete."""
        exchange, body = self._exchange, self._body
        if exchange is None:
            return
        self._exchange = None
        exchange.complete = True
        if body:
            exchange.body = body[0] if len(body) == 1 else b"".join(body)
            exchange.received = len(exchange.body)
            body.clear()
            if exchange.received > self._handler.max_body and exchange.refusal is None:
                exchange.refusal = self._too_large()


def _split(target: bytes) -> tuple[str, str]:
    """Path and query of a request target in origin form (`/v1/models?x`) or absolute form (`http://host/v1/models`)."""
    authority = None if target.startswith(b"/") else _AUTHORITY.match(target)
    if authority is not None:
        rest = target[authority.end() :]
        target = rest if rest.startswith(b"/") else b"/" + rest
    if b"?" not in target:
        return target.decode("latin-1"), ""
    path, _, query = target.partition(b"?")
    return path.decode("latin-1"), query.decode("latin-1")
