"""A reply that another gateway process of the fleet is recording: asked for, and shown, over a private Unix socket.

The socket is open to this user alone, who could read the store of replies as well, so it needs no secret. Who may have
the reply was found out by the process that asks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol, cast

from uvicorn.server import ServerState

from tuneplex.errors import ApiError, NotFound
from tuneplex.feed.sockets import private_socket
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.heads import STATUS_LINES, error_lines
from tuneplex.gateway.protocol import ClientConnection, ConnectionLimits
from tuneplex.http import Call, Endpoint, Pool, UpstreamFault

__all__ = ["Hop", "Shows", "listening"]

_CONNECT_S = 5.0
_GONE = 410
_WHOLE_LIMIT = 1024 * 1024
# What every connection says for itself.
_OWN = frozenset((b"content-type", b"content-length", b"transfer-encoding", b"connection", b"date", b"x-request-id"))


class Shows(Protocol):
    """Who has the recordings."""

    def show(self, exchange: Exchange, name: bytes) -> bool:
        """Let another process hear the recording with this name; False if there is none."""


class _Desk:
    """Answers other gateway processes (see `protocol.Handler`)."""

    max_body = 0

    def __init__(self, shows: Shows) -> None:
        self._shows = shows

    def head(self, exchange: Exchange) -> None:
        """Nothing to look at yet."""

    def handle(self, exchange: Exchange) -> None:
        """The path is a recording's name."""
        try:
            found = self._shows.show(exchange, bytes.fromhex(exchange.path[1:]))
        except ValueError:
            self.refuse(exchange, NotFound("There is no such path."))
            return
        if not found:
            exchange.reply(_GONE, b"")

    def refuse(self, exchange: Exchange, error: ApiError) -> None:
        """It was no gateway that asked."""
        exchange.reply(error.status, error.body(), headers=error_lines(error))


@contextlib.asynccontextmanager
async def listening(shows: Shows, path: Path) -> AsyncIterator[None]:
    """Show recordings to other processes on this socket for as long as the block runs."""
    state, limits = ServerState(), ConnectionLimits(idle_s=3600.0)

    def connection() -> asyncio.Protocol:
        return ClientConnection(_Desk(shows), limits, config=cast("Any", None), server_state=state)

    server = await asyncio.get_running_loop().create_unix_server(connection, sock=private_socket(path))
    try:
        yield
    finally:
        server.close()
        for one in tuple(state.connections):
            cast("ClientConnection", one).transport.abort()
        _forget(path)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


class Hop:
    """Passes the reply that another process has on to a client; the listener of its exchange.

    Args:
        exchange: The client.
        missing: Called instead, before the client was told anything, when the other process says that it has no such
            reply (True), or says nothing (False).
        done: Called when the client has got everything.
    """

    def __init__(
        self, exchange: Exchange, missing: Callable[[bool], None], done: Callable[[Exchange], None] = lambda _: None
    ) -> None:
        self._exchange = exchange
        self._missing = missing
        self._done = done
        self._call: Call | None = None
        self._head: tuple[int, bytes, bytes] = (0, b"", b"")
        self._length: int | None = None
        self._body: list[bytes] = []

    def ask(self, owner: str, name: bytes) -> None:
        """Ask the process that listens on this socket for the recording with this name."""
        self._exchange.listener = self
        lines = (b"GET /%b HTTP/1.1" % name.hex().encode(), b"host: gateway", b"connection: close")
        request = b"\r\n".join((*lines, b"x-request-id: %b" % self._exchange.request_id, b"", b""))
        # No pool is kept: it would outlive the process that it leads to.
        self._call = Pool(Endpoint(path=owner)).send(request, self, connect_timeout_s=_CONNECT_S)

    # --- what the other process says

    def reply_started(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take over its head."""
        if status == _GONE or status not in STATUS_LINES:
            self._lost(told=status == _GONE)
            return
        lines = b"".join(b"%b: %b\r\n" % header for header in headers.items() if header[0] not in _OWN)
        self._head = (status, headers.get(b"content-type", b""), lines)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) <= _WHOLE_LIMIT:
            self._length = int(length)
        else:
            self._exchange.start(*self._head)
            if self._exchange.paused and self._call is not None:
                self._call.pause()

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Pass it on."""
        exchange = self._exchange
        if done:
            self._call = exchange.listener = None
        if self._length is not None:
            self._body.append(data)
            if done:
                status, content_type, lines = self._head
                exchange.reply(status, b"".join(self._body), content_type, lines)
        elif done:
            exchange.finish(data)
        else:
            exchange.write(data)
        if done:
            self._done(exchange)

    def reply_failed(self, fault: UpstreamFault) -> None:  # noqa: ARG002 - whatever it was, it is gone
        """Cut the client off, if it was told anything; otherwise there are other ways."""
        if self._exchange.status:
            self._call = self._exchange.listener = None
            self._exchange.cut()
        else:
            self._lost(told=False)

    def _lost(self, *, told: bool) -> None:
        self._exchange.listener = None
        self.client_gone()
        self._missing(told)

    # --- what the client does

    def client_gone(self) -> None:
        """It needs nothing more."""
        call, self._call = self._call, None
        if call is not None:
            call.abort()

    def client_paused(self) -> None:
        """Let the other process wait; nobody else waits for that."""
        if self._call is not None:
            self._call.pause()

    def client_resumed(self) -> None:
        """Go on."""
        if self._call is not None:
            self._call.resume()
