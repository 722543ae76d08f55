"""One keep-alive connection to a server, spoken to by callbacks: the client side of the hot path.

A connection carries one `Call` at a time (see `pool`). The parser appends body pieces to a list by itself, so one read
from the socket costs one Python callback, whatever the number of chunks in it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

import httptools

if TYPE_CHECKING:
    from tuneplex.http.pool import Call, Pool

__all__ = ["Broken", "Receiver", "Unreachable", "UpstreamConnection", "UpstreamFault"]

_MAX_HEAD = 64 * 1024
_OK = 200


class UpstreamFault(Exception):
    """A call that got no complete reply. The text is for logs, not for clients."""


class Unreachable(UpstreamFault):
    """No connection came about in time; the request has not been sent."""


class Broken(UpstreamFault):
    """The connection ended, or carried no HTTP, before the reply was complete."""


class Receiver(Protocol):
    """Who waits for a reply. None of these is called after `Call.abort`."""

    def reply_started(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The head has come. Header names are in lower case; of repeated headers it is the last."""

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - positional: called for every chunk
        """More of the body has come; with `done` the reply is complete (`data` may be empty then)."""

    def reply_failed(self, fault: UpstreamFault) -> None:
        """The reply will not be completed."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that a `Pool` owns; `call` is None while it is idle."""

    def __init__(self, pool: Pool) -> None:
        self.transport = cast("asyncio.Transport", None)
        self.call: Call | None = None
        self.used = False
        self._pool = pool
        self._parts: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._reply_headers: dict[bytes, bytes] = {}
        self._reset()
        # Found by the parser as its callbacks: no Python frame for each header and piece.
        self.on_header = self._headers.__setitem__
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)

    def _reset(self) -> None:
        self._headers.clear()
        self._status = 0
        self._announced = False
        self._complete = False
        self._keep_alive = False
        self._until_eof = False
        self._head_bytes = 0

    def begin(self, call: Call) -> None:
        """Send the call's request on this connection."""
        self.call = call
        call.connection = self
        self.transport.write(call.request)

    def abort(self) -> None:
        """Drop the connection now; a call on it hears nothing more."""
        self.call = None
        self.transport.abort()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came and hand it to the call in one piece."""
        call = self.call
        if call is None:  # bytes that nobody asked for: this connection cannot be trusted any more
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._fail(Broken(f"no HTTP: {error}"))
                return
            self._keep_alive = False
        if not self._announced and not self._announce(call, len(data)):
            return
        parts = self._parts
        if parts:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if not self._complete:
                call.receiver.reply_data(data, False)
                return
        elif self._complete:
            data = b""
        else:
            return
        if self.call is call:
            self._finish(call, data)

    def _announce(self, call: Call, size: int) -> bool:
        """Tell the receiver of the head, if it is complete; False while there is nothing more to tell."""
        call.request = b""  # a byte has come: no second try, so the request need not be kept
        if self._status < _OK:
            self._head_bytes += size
            if self._head_bytes > _MAX_HEAD:
                self._fail(Broken("the head of the reply is too large"))
            return False
        self._announced = True
        call.receiver.reply_started(self._status, self._reply_headers)
        return self.call is call

    def _finish(self, call: Call, data: bytes) -> None:
        """Give the connection back, then hand over the end of the reply."""
        self.call = call.connection = None
        keep = self._keep_alive and not self._until_eof
        self._reset()
        self.used = True
        if keep:
            self._pool.release(self)
        else:
            self.transport.close()
        call.receiver.reply_data(data, True)

    def _fail(self, fault: UpstreamFault, *, stale: bool = False) -> None:
        call = self.call
        self.abort()
        if call is not None:
            self._pool.failed(call, fault, stale=stale)

    def eof_received(self) -> None:
        """A reply without a length ends here; any other one is broken (see `connection_lost`)."""
        call = self.call
        if call is not None and self._until_eof and self._announced:
            self._finish(call, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the call that was under way, or leave the pool."""
        if self.call is None:
            self._pool.forget(self)
        else:
            stale = self.used and not self._status and not self._head_bytes
            self._fail(Broken(f"connection closed: {str(exc or '') or 'end of file'}"), stale=stale)

    # --- the parser's side

    def on_message_begin(self) -> None:
        """A reply begins. A second one in the same read would be taken for a part of the first.

        Raises:
            ValueError: Nobody has asked for it; the parser stops.
        """
        if self._complete:
            raise ValueError("a reply that nobody asked for")

    def on_headers_complete(self) -> None:
        """Take the status and how the body ends."""
        self._status = self._parser.get_status_code()
        if self._status < _OK:
            self._headers.clear()
            return
        self._keep_alive = self._parser.should_keep_alive()
        self._reply_headers = headers = {name.lower(): value for name, value in self._headers.items()}
        self._until_eof = b"content-length" not in headers and b"transfer-encoding" not in headers

    def on_message_complete(self) -> None:
        """The reply is complete, unless it was an interim one (1xx)."""
        if self._status >= _OK:
            self._complete = True
