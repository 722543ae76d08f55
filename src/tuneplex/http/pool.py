"""Keep-alive connections to one endpoint, and the calls made on them."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

from tuneplex.http.endpoint import Endpoint
from tuneplex.http.upstream import Receiver, Unreachable, UpstreamConnection, UpstreamFault

__all__ = ["Call", "Pool"]

_MAX_IDLE = 512


class Call:
    """One request that waits for its reply.

    Attributes:
        request: The bytes to send; empty once the first byte of the reply has come.
        receiver: Who hears of the reply; may be replaced between two callbacks.
        connection: Where it is under way; None while connecting and when it is over.
    """

    __slots__ = ("connecting", "connection", "receiver", "request", "timeout_s")

    def __init__(self, request: bytes, receiver: Receiver, timeout_s: float) -> None:
        self.request = request
        self.receiver = receiver
        self.timeout_s = timeout_s
        self.connection: UpstreamConnection | None = None
        self.connecting: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Give up: the server sees the connection close at once, the receiver hears nothing more."""
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def pause(self) -> None:
        """Stop reading the reply, so that the server has to wait."""
        if self.connection is not None and not self.connection.transport.is_closing():
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.connection is not None and not self.connection.transport.is_closing():
            self.connection.transport.resume_reading()


class Pool:
    """The connections to one endpoint.

    Args:
        endpoint: Where to connect.
        tls: For https endpoints; None means the system's trusted certificates.
    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._idle: deque[UpstreamConnection] = deque()
        self._closed = False

    @property
    def idle(self) -> int:
        """How many connections wait for a call."""
        return len(self._idle)

    def send(self, request: bytes, receiver: Receiver, *, connect_timeout_s: float) -> Call:
        """Send a whole request: at once on an idle connection, otherwise as soon as a new one is made.

        A kept connection that the server closed meanwhile shows only when it is used; such a call is sent once more,
        on a new connection, as long as no byte of a reply has come.

        Args:
            request: Head and body.
            receiver: Hears of the reply; never from within this method.
            connect_timeout_s: How long a new connection may take.
        """
        call = Call(request, receiver, connect_timeout_s)
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.begin(call)
                return call
        self._connect(call)
        return call

    def close(self) -> None:
        """Close idle connections now, and the others as soon as their calls are over."""
        self._closed = True
        while self._idle:
            self._idle.pop().transport.close()

    # --- what connections tell their pool

    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose call is over."""
        if self._closed or len(self._idle) >= _MAX_IDLE:
            connection.transport.close()
            return
        if not connection.transport.is_reading():
            connection.transport.resume_reading()  # to notice when the server closes it
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """An idle connection was lost."""
        try:
            self._idle.remove(connection)
        except ValueError:
            return

    def failed(self, call: Call, fault: UpstreamFault, *, stale: bool) -> None:
        """A call lost its connection; send it again if that was a stale one."""
        call.connection = None
        if stale and call.request:
            self._connect(call)
        else:
            call.receiver.reply_failed(fault)

    # --- connecting

    def _connect(self, call: Call) -> None:
        call.connecting = asyncio.get_running_loop().create_task(self._open(call))

    async def _open(self, call: Call) -> None:
        try:
            async with asyncio.timeout(call.timeout_s):
                connection = await self._dial()
        except (OSError, TimeoutError) as error:  # an SSL error is an OSError too
            call.connecting = None
            call.receiver.reply_failed(Unreachable(f"cannot connect to {self.endpoint}: {str(error) or 'timed out'}"))
        else:
            call.connecting = None
            connection.begin(call)

    async def _dial(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        endpoint = self.endpoint
        if endpoint.path:
            return (await loop.create_unix_connection(lambda: UpstreamConnection(self), endpoint.path))[1]
        if endpoint.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        tls = self._tls if endpoint.tls else None
        return (await loop.create_connection(lambda: UpstreamConnection(self), endpoint.host, endpoint.port, ssl=tls))[
            1
        ]
