"""A small HTTP/1.1 server that can also break the rules: exact bytes, true send times, resets.

uvicorn hides the socket; here it is in reach, because a fake engine has to reset connections, cut events at any byte
and know when each chunk went out.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

import httptools

__all__ = ["Connection", "Exchange", "Handler", "Wire", "bind"]

Handler = Callable[["Exchange"], Awaitable[None]]
_HIGH_WATER = 64 * 1024


class Exchange:
    """One request, and the means to answer it.

    Attributes:
        method: As the client wrote it.
        path: Without the query.
        target: With the query.
        headers: Names in lower case.
        body: All of it.
        gone: Set when the client's side of the connection is gone.
        started: The response's headers are out.
    """

    def __init__(self, connection: Connection, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self.headers = headers
        self.body = body
        self.gone = connection.gone
        self.started = False
        self._chunked = False

    def start(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None = None) -> None:
        """Write the status line and the headers; without a length the body is chunked."""
        self.started = True
        self._chunked = length is None
        framing = ("transfer-encoding", "chunked") if length is None else ("content-length", str(length))
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in (("date", formatdate(usegmt=True)), ("server", "uvicorn"))]
        lines += [f"{name}: {value}" for name, value in (*headers, framing)]
        self.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    def send(self, data: bytes) -> None:
        """Write one piece of the body."""
        if self.method == "HEAD":
            return
        self.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        """End the body."""
        if self._chunked and self.method != "HEAD":
            self.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        """Write bytes as they are, without framing."""
        if not self.gone.is_set():
            self._connection.transport.write(data)

    async def drain(self) -> None:
        """Wait while the client is slow to read, or the server hangs."""
        await self._connection.ready()

    def close(self) -> None:
        """End the connection in an orderly way, whatever the HTTP body was."""
        self._connection.transport.close()

    def reset(self) -> None:
        """Break the connection off; a TCP client sees a reset."""
        self._connection.reset()


class Connection(asyncio.Protocol):
    """One client connection: parses requests, answers them one after the other."""

    transport: asyncio.Transport

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._parser = httptools.HttpRequestParser(self)
        self._queue: list[Exchange] = []
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._clear()
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def _clear(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: a client is there."""
        # uvloop's transports are no subclasses of it, they only behave so
        transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.transport = transport
        self._wire.connections.add(self)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the client is gone, so whatever is made for it stops."""
        del exc
        self._wire.connections.discard(self)
        self.gone.set()
        self.writable.set()
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Asyncio: the client is slow to read."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Asyncio: the client caught up."""
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Asyncio: more of a request."""
        self._stop_waiting()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return
        except httptools.HttpParserError:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n")
            self.transport.write(b"connection: close\r\n\r\nInvalid HTTP request received.")
            self.transport.close()

    def on_message_begin(self) -> None:
        """Httptools: a request begins."""
        self._clear()

    def on_url(self, url: bytes) -> None:
        """Httptools: a piece of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Httptools: one header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Httptools: the headers are complete, the body may have to be asked for."""
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Httptools: a piece of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Httptools: one request is there in full."""
        method = self._parser.get_method().decode("latin-1")
        exchange = Exchange(self, method, self._target.decode("latin-1"), self._headers, bytes(self._body))
        self._queue.append(exchange)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        while self._queue:
            exchange = self._queue.pop(0)
            try:
                await self._wire.awake.wait()
                await self._wire.handler(exchange)
            except BaseException:
                self.transport.abort()
                raise
            if exchange.headers.get("connection", "").lower() == "close":
                self.transport.close()
        self._task = None
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        if not self.transport.is_closing():
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._wire.keep_alive_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self._task is not None

    async def ready(self) -> None:
        """Wait while the client is slow to read, or the server hangs."""
        await self.writable.wait()
        await self._wire.awake.wait()

    def reset(self) -> None:
        """Break off without a proper end."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def ended(self) -> None:
        """Wait until nothing works for this connection any more."""
        if self._task is not None:
            await asyncio.wait((self._task,))


def bind(host: str, port: int, uds: str | None) -> socket.socket:
    """A socket with its address, which accepts nothing yet.

    Raises:
        OSError: The address is taken; a Unix socket's path too, whether or not anybody still listens there.
    """
    sock = socket.socket(socket.AF_INET if uds is None else socket.AF_UNIX)
    try:
        if uds is None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port) if uds is None else uds)
    except BaseException:
        sock.close()
        raise
    return sock


class Wire:
    """The listening side.

    Args:
        handler: Answers each request.
        keep_alive_s: How long a connection may stay idle.

    Attributes:
        handler: See there.
        keep_alive_s: See there.
        connections: Those that are open.
        awake: Not set while the server hangs: connections are accepted, and nothing is said on any.
    """

    def __init__(self, handler: Handler, *, keep_alive_s: float) -> None:
        self.handler = handler
        self.keep_alive_s = keep_alive_s
        self.connections: set[Connection] = set()
        self.awake = asyncio.Event()
        self.awake.set()
        self._server: asyncio.Server | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Start to accept on a bound socket."""
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        self._server = await create(lambda: Connection(self), sock=sock)

    def die(self) -> None:
        """Stop to accept, and reset what is open, all at once."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.reset()

    async def close(self) -> None:
        """Stop to accept, reset what is open, and wait until nothing works any more."""
        connections = tuple(self.connections)
        self.die()
        for connection in connections:
            await connection.ended()
        if self._server is not None:
            await self._server.wait_closed()
