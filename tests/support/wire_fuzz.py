"""What the fuzzers of the client's side share: requests, ways to spoil and cut them, a connection without a socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, cast

import h11
import msgspec
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from tuneplex.errors import ApiError, NotFound
from tuneplex.gateway import ConnectionLimits
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.protocol import ClientConnection, Handler

__all__ = [
    "FAR",
    "LIMITS",
    "Cutting",
    "Echo",
    "Reply",
    "Talk",
    "Wires",
    "cuts",
    "open_wires",
    "parse_replies",
    "requests",
    "spoilt",
    "talk",
]

MAX_BODY = 2000
LIMITS = ConnectionLimits(head_bytes=4096, header_count=32, pipelined_bytes=64 * 1024)
FAR = 1e12


class Reply(msgspec.Struct, frozen=True):
    """One reply, read by another parser than ours.

    Attributes:
        status: Its HTTP status.
        body: Without framing.
    """

    status: int
    body: bytes


class Wires:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.aborted = False
        self.ended = False
        self.coming: list[Callable[[], None]] = []

    def write(self, data: bytes) -> None:
        """Keep it, unless the connection is over."""
        assert isinstance(data, bytes)
        if not self.closed:
            self.written += data

    def write_eof(self) -> None:
        """No more comes from here."""
        self.ended = True

    def can_write_eof(self) -> bool:
        """As plain TCP."""
        return True

    def close(self) -> None:
        """In an orderly way."""
        self.closed = True

    def abort(self) -> None:
        """At once."""
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self.closed

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        """A peer."""
        return ("127.0.0.1", 1)


class Echo:
    """Answers with what it understood of each request, at once or later.

    Args:
        later: Whether replies wait for `release`.
    """

    max_body = MAX_BODY

    def __init__(self, *, later: bool) -> None:
        self.methods: list[str] = []
        self.waiting: list[Exchange] = []
        self._later = later

    def head(self, exchange: Exchange) -> None:
        """Refuse some paths."""
        if exchange.path == "/nowhere":
            raise NotFound("There is no such path.", code="unknown_path")

    def handle(self, exchange: Exchange) -> None:
        """Answer."""
        assert exchange.complete
        if self._later:
            self.waiting.append(exchange)
        else:
            self._answer(exchange)

    def refuse(self, exchange: Exchange, error: ApiError) -> None:
        """Answer with an error."""
        self.methods.append(exchange.method)
        exchange.reply(error.status, error.body())

    def release(self) -> None:
        """Answer what waits."""
        while self.waiting:
            exchange = self.waiting.pop(0)
            if not exchange.gone:
                self._answer(exchange)

    def _answer(self, exchange: Exchange) -> None:
        self.methods.append(exchange.method)
        understood = [exchange.method, exchange.path, exchange.query, sha256(exchange.body).hexdigest()]
        if exchange.path == "/stream" and exchange.method != "HEAD":
            exchange.start(200, b"application/json")
            for piece in (json.dumps(understood).encode(), b" "):
                exchange.write(piece)
            exchange.finish()
        else:
            exchange.reply(200, json.dumps(understood).encode())


class Talk(msgspec.Struct):
    """What came of some bytes on one connection.

    Attributes:
        replies: Those to the requests.
        closed: The gateway has ended the connection by itself.
        connection: Ours.
        echo: What answered.
        wires: What it was connected to.
    """

    replies: list[Reply]
    closed: bool
    connection: Any
    echo: Any
    wires: Any


class Cutting(Echo):
    """Breaks off every reply."""

    def __init__(self) -> None:
        super().__init__(later=False)

    def handle(self, exchange: Exchange) -> None:
        """Say half of it."""
        exchange.start(200, b"application/json")
        exchange.write(b"{")
        exchange.cut()


def open_wires(handler: Handler) -> tuple[ClientConnection, Wires, ServerState]:
    """A new connection of a client, without a socket, and where it is counted."""
    wires, state = Wires(), ServerState()
    connection = ClientConnection(
        handler, LIMITS, config=cast("Config", None), server_state=state, soon=wires.coming.append
    )
    connection.connection_made(cast("Any", wires))
    return connection, wires, state


def talk(pieces: Sequence[bytes], *, later: bool = False) -> Talk:
    """Send these pieces one after the other on a new connection, and let the client's patience end."""
    echo = Echo(later=later)
    connection, wires, state = open_wires(echo)
    for piece in pieces:
        if wires.closed:
            break
        connection.data_received(piece)
    _settle(echo, wires)
    closed = wires.closed or wires.ended
    replies = parse_replies(bytes(wires.written), echo.methods, closed=closed)
    for _ in range(3):  # a deadline for what is not complete, one for the reply to that, one for the end
        if not wires.closed:
            connection.tick(FAR)
            _settle(echo, wires)
    assert wires.closed, "the connection is kept for ever"
    assert not echo.waiting
    connection.connection_lost(None)
    assert not state.connections
    assert connection._current is None
    assert not connection._queue
    assert not connection._backlog
    parse_replies(bytes(wires.written), echo.methods, closed=True)
    return Talk(replies, closed, connection, echo, wires)


def _settle(echo: Echo, wires: Wires) -> None:
    """Let everything happen that was put off."""
    while echo.waiting or wires.coming:
        echo.release()
        while wires.coming:
            wires.coming.pop(0)()


def parse_replies(data: bytes, methods: Sequence[str], *, closed: bool) -> list[Reply]:
    """Read replies with h11; each belongs to a request of the method at its place.

    Args:
        data: All that was said.
        methods: Of the requests.
        closed: Nothing more comes, which ends a reply without a length.
    """
    found = []
    for method in methods:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method or "GET", target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(data)
        reply = _next(client, closed=closed)
        if reply is None:
            break
        found.append(reply)
        data = client.trailing_data[0]
    assert len(found) == len(methods), "a reply is missing, or is not complete"
    assert data in {b"", b"HTTP/1.1 100 Continue\r\n\r\n"}, "more was said than there was to answer"
    return found


def _next(client: h11.Connection, *, closed: bool) -> Reply | None:
    status, body = 0, b""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            reply = Reply(status, body)
            if status >= 400 and body:
                assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
            return reply
        elif event is h11.NEED_DATA and closed:
            client.receive_data(b"")
            closed = False
        elif event is h11.NEED_DATA:
            return None


# --- requests

_METHODS = st.sampled_from(b"GET POST HEAD OPTIONS PUT DELETE PATCH CONNECT PRI x".split())
_TARGETS = st.sampled_from(
    [
        *b"/ /stream /nowhere * http://host/a?b http://host http://host?c=/d *?x=://y/z /a?b=c#d /%00%ff // x".split(),
        b"/\xe9",
        b"/" + b"long" * 1000,
    ]
)
_VERSIONS = st.sampled_from([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1", b""])
_HEADERS = st.sampled_from(
    [
        b"connection: close", b"connection: keep-alive", b"Connection: Upgrade", b"upgrade: h2c", b"upgrade: websocket",
        b"connection: close, upgrade", b"expect: 100-continue", b"EXPECT: other", b"x:", b"x: \xe9", b"x: a\tb",
        b"x:" + b"y" * 5000, b"content-length: 3", b"content-length: 0", b"content-length: 003", b"content-length: -1",
        b"content-length: 3, 3", b"content-length: 99999999999999999999", b"content-length: 9223372036854775807",
        b"content-length: " + b"0" * 3000 + b"3", b"content-length: 2001", b"content-length:", b"Content-Length: +3",
        b"transfer-encoding: chunked", b"transfer-encoding: Chunked", b"transfer-encoding: identity", b"host: again",
        b"transfer-encoding: chunked, identity", b"transfer-encoding: gzip, chunked", b"transfer-encoding:\tchunked",
        b"transfer-encoding : chunked", b" folded", b"no colon", b": empty", b"a\x00b: c", b"a: b\x00c",
        b"proxy-connection: close",
    ]
)  # fmt: skip


_SIZES = [b"%x", b"%X", b"0%x", b"%x;ext=1", b'%x;a="b\\"c"', b"%x ", b"+%x", b"0x%x"]
_ENDS = [b"0\r\n\r\n"] * 5 + [b"00\r\n\r\n", b"0\r\nt: v\r\n\r\n", b"0\r\n", b"-1\r\n\r\n", b""]


@st.composite
def _chunked(draw: st.DrawFn) -> bytes:
    parts = []
    for data in draw(st.lists(st.binary(min_size=1, max_size=40), max_size=4)):
        size = draw(st.sampled_from(_SIZES)) % len(data)
        parts.append(size + b"\r\n" + data + b"\r\n")
    return b"".join(parts) + draw(st.sampled_from(_ENDS))


@st.composite
def requests(draw: st.DrawFn, *, sane: bool = False) -> bytes:
    """One request: a sane one, or one with anything in it."""
    if sane:
        method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS"]))
        target = draw(st.sampled_from([b"/", b"/stream", b"/nowhere", b"/a?b=c"]))
        version, headers = b"HTTP/1.1", [b"host: x"]
    else:
        method, target, version = draw(_METHODS), draw(_TARGETS), draw(_VERSIONS)
        headers = draw(st.lists(_HEADERS, max_size=5)) + [b"host: x"] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    body = b""
    # A refused request whose end is not known ends its connection, so a sane one has a length.
    endless = sane and target == b"/nowhere"
    kind = draw(st.sampled_from(["none", "length"] if endless else ["none", "length", "chunked"]))
    if kind == "length":
        body = draw(st.binary(max_size=60)) * draw(st.sampled_from([1, 1, 1, 60]))
        headers = [*headers, b"content-length: %d" % len(body)]
    elif kind == "chunked":
        good = st.lists(st.binary(min_size=1, max_size=40), max_size=4).map(
            lambda parts: b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        )
        body = draw(good if sane else _chunked())
        headers = [*headers, b"transfer-encoding: chunked"]
    head = b"\r\n".join([b" ".join((method, target, version)), *headers])
    return head + b"\r\n\r\n" + body


def spoilt(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The same bytes with something wrong: bytes changed, taken out, put in, or the end cut off."""
    return st.builds(_spoil, data, st.lists(st.tuples(st.integers(0, 2**16), _EDITS), min_size=1, max_size=4))


_EDITS: st.SearchStrategy[Callable[[bytes, int], bytes]] = st.one_of(
    st.binary(min_size=1, max_size=3).map(lambda new: lambda data, at: data[:at] + new + data[at + len(new) :]),
    st.sampled_from([b"\r", b"\n", b"\0", b" ", b":", b"\r\n", b"\r\n\r\n", b"\x80", b"0"]).map(
        lambda new: lambda data, at: data[:at] + new + data[at:]
    ),
    st.integers(1, 8).map(lambda count: lambda data, at: data[:at] + data[at + count :]),
    st.just(lambda data, at: data[:at]),
)


def _spoil(data: bytes, edits: list[tuple[int, Callable[[bytes, int], bytes]]]) -> bytes:
    for at, edit in edits:
        data = edit(data, at % (len(data) + 1))
    return data


def cuts(data: bytes, at: Sequence[int]) -> list[bytes]:
    """The bytes in pieces; none of them is empty."""
    borders = sorted({place % (len(data) + 1) for place in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(borders)]
