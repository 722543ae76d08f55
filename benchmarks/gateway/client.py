"""The clients of the benchmark: each one sends a request, checks every byte of the reply, and sends the next."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import cast

from benchmarks.errors import BenchmarkError
from benchmarks.gateway.upstream import Exchange
from benchmarks.gateway.wire import Script

__all__ = ["Client", "TimedClient"]

_END = b"\r\n\r\n"
_EVENTS_SHOWN = 300


class Client(asyncio.Protocol):
    """One keep-alive connection to a proxy.

    The usual case, one piece for each read in the coding that most servers choose, is one comparison of bytes; all
    others (pieces cut or joined differently) are decoded and compared as well.

    Args:
        request: The whole HTTP request.
        expected: The reply as this client must see it.
        exchange: The engine's side, which is told when a piece has arrived.
        done: Is called after each complete reply.
        fail: Is told what went wrong.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_done",
        "_exchange",
        "_expected",
        "_fail",
        "_in_head",
        "_position",
        "_raw",
        "_request",
        "_socket",
        "_transport",
    )

    def __init__(
        self,
        request: bytes,
        expected: Script,
        exchange: Exchange,
        done: Callable[[Client], None],
        fail: Callable[[str], None],
    ) -> None:
        self._request = request
        self._expected = expected
        self._exchange = exchange
        self._done = done
        self._fail = fail
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._in_head = True
        self._chunked = False
        self._position = len(expected.events)
        self._raw = b""
        self._body = b""

    @property
    def waiting(self) -> str:
        """What it waits for, for a message about a run that hangs."""
        where = "the head" if self._in_head else f"piece {self._position}"
        return f"{where} of {len(self._expected.events)}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")

    def connection_lost(self, exc: Exception | None) -> None:
        """A proxy that closes a connection on which a reply is due has failed."""
        self._transport = None
        if not self._idle:
            self._fail(f"the proxy closed the connection while the client waited for {self.waiting} ({exc})")

    def send(self) -> None:
        """Send the request; the reply is due from now on."""
        if self._transport is None:
            self._fail("the proxy closed a keep-alive connection between two requests")
            return
        self._in_head = True
        self._position = 0
        self._transport.write(self._request)

    def _acknowledge_at_once(self) -> None:
        """Leave the kernel's interactive mode, in which it would hold acknowledgements back for up to 40 ms.

        A proxy that leaves Nagle's algorithm on would wait for them before each chunk, and its figures would be those
        of a proxy that sleeps. Sending turns the mode on again, hence once for each request.
        """
        if self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def close(self) -> None:
        """Close the connection; nothing is due any more."""
        self._position = len(self._expected.events)
        self._in_head = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def _idle(self) -> bool:
        return self._in_head and self._position == len(self._expected.events)

    def data_received(self, data: bytes) -> None:
        """Compare what came with what must come."""
        position = self._position
        frames = self._expected.frames
        whole = not self._in_head and not self._raw and not self._body and position < len(frames)
        if whole and data == frames[position]:
            self._position = position + 1
            if self._position == len(frames):
                self._finish()
            else:
                self._exchange.advance()
            return
        try:
            self._decode(data)
        except BenchmarkError as error:
            self._fail(str(error))

    def _decode(self, data: bytes) -> None:
        self._raw += data
        if self._idle:
            raise BenchmarkError(f"bytes after the end of the reply: {data[:_EVENTS_SHOWN]!r}")
        if self._in_head and not self._take_head():
            return
        if self._chunked:
            self._take_chunks()
        else:
            self._body, self._raw = self._raw, b""
            if self._compare():
                self._finish()

    def _take_head(self) -> bool:
        head, end, rest = self._raw.partition(_END)
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 200 "):
            raise BenchmarkError(f"the proxy answered {self._raw[:_EVENTS_SHOWN]!r}")
        self._chunked = b"\r\ntransfer-encoding: chunked" in head.lower()
        self._in_head = False
        self._raw = rest
        self._acknowledge_at_once()
        return True

    def _take_chunks(self) -> None:
        """Undo the chunked transfer coding as far as there are bytes."""
        while True:
            size_line, end, rest = self._raw.partition(b"\r\n")
            if not end:
                return
            size = int(size_line.split(b";", 1)[0], 16)
            if len(rest) < size + 2:
                return
            self._body += rest[:size]
            self._raw = rest[size + 2 :]
            complete = self._compare()
            if not size:
                if not complete or self._raw or self._body:
                    raise BenchmarkError(f"the reply ended while {self.waiting} was due")
                self._finish()
                return

    def _compare(self) -> bool:
        """Take whole events off the decoded bytes, ask for the next ones; True when the last one has come."""
        events = self._expected.events
        while self._body and self._position < len(events):
            event = events[self._position]
            if not self._body.startswith(event):
                if event.startswith(self._body):
                    break
                raise BenchmarkError(f"expected {event!r}, got {self._body[:_EVENTS_SHOWN]!r}")
            self._body = self._body[len(event) :]
            self._position += 1
            self._exchange.advance()
        if self._body and self._position == len(events):
            raise BenchmarkError(f"bytes after the last event: {self._body[:_EVENTS_SHOWN]!r}")
        return self._position == len(events)

    def _finish(self) -> None:
        self._in_head = True
        self._done(self)


class TimedClient(Client):
    """One that also notes how long each first piece takes, in `first_us`, microseconds."""

    __slots__ = ("_asked_at", "_times")

    def __init__(
        self,
        request: bytes,
        expected: Script,
        exchange: Exchange,
        done: Callable[[Client], None],
        fail: Callable[[str], None],
        *,
        times: list[float],
    ) -> None:
        super().__init__(request, expected, exchange, done, fail)
        self._times = times
        self._asked_at: float | None = None

    def send(self) -> None:
        """Send the request, and note when."""
        self._asked_at = time.perf_counter()
        super().send()

    def _compare(self) -> bool:
        if self._asked_at is not None and self._body:
            self._times.append((time.perf_counter() - self._asked_at) * 1e6)
            self._asked_at = None
        return super()._compare()
