"""A reply that is kept while it is made, for everybody who wants to hear it, each at a pace of its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import cast

from tuneplex.gateway.exchange import Exchange, Listener
from tuneplex.gateway.heads import EVENT_STREAM

__all__ = ["Reader", "Recording"]

_PIECE = 64 * 1024
_WHOLE_LIMIT = 1024 * 1024  # what is larger is sent in pieces, as fast as it is read
_HELD = 1024 * 1024  # of a recording that cannot be kept: what its slowest reader may lag behind
_STREAM_HEADERS = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


class Recording:
    """One reply, and who reads it. It is the connection that its `Recorder` believes to have (see `exchange.Owner`).

    Args:
        fingerprint: Of the request.
        request_id: The request's own.
        readers_gone: Called when a reply that goes on has lost its last reader.
        grown: Called when it is larger than its `room`.
        ended: Called at its end, before its readers hear of that.

    Attributes:
        status: Of the reply, 0 before it.
        content_type: Of the reply.
        size: Bytes of its body so far.
        room: Bytes that it may have; infinite while more are being asked for.
        tail: The last pieces of its body.
        kept: Nothing of it was thrown away: it can be read from its beginning.
        over: There is nothing more to come.
        broken: It has ended in the middle.
        extra: Header lines for the client that asked first.
        works: Hears whether the reply is read; the listener of the exchange that it is written to.
        alone_since: When its last reader left, on the clock of `time.monotonic`; None while there is one.
    """

    peer = ""

    def __init__(
        self,
        fingerprint: bytes = b"",
        request_id: bytes = b"",
        *,
        readers_gone: Callable[[Recording], None] = lambda _: None,
        grown: Callable[[Recording], None] = lambda _: None,
        ended: Callable[[Recording], None] = lambda _: None,
    ) -> None:
        self.fingerprint = fingerprint
        self.request_id = request_id
        self.transport = cast("asyncio.Transport", None)
        self.paused = False
        self.leaving = False  # whoever reads it has a connection of its own
        self.status = 0
        self.content_type = b""
        self.headers = b""
        self.extra = b""
        self.size = 0
        self.room = math.inf
        self.tail: tuple[bytes, bytes] = (b"", b"")
        self.kept = True
        self.whole = False
        self.over = False
        self.broken = False
        self.works: Callable[[], Listener | None] = lambda: None
        self.alone_since: float | None = None
        self._readers: dict[Reader, None] = {}
        self._pieces: list[bytes] = []
        self._first = 0  # the number of the first piece that is still here
        self._held = 0  # bytes of those
        self._readers_gone = readers_gone
        self._grown = grown
        self._ended = ended

    @classmethod
    def of(cls, request_id: bytes, content_type: bytes, body: bytes) -> Recording:
        """A reply that was complete long ago."""
        made = cls(request_id=request_id)
        if content_type != EVENT_STREAM and len(body) <= _WHOLE_LIMIT:
            made.say(200, content_type, b"", body)
            return made
        made.begin(200, content_type, _STREAM_HEADERS if content_type == EVENT_STREAM else b"")
        for at in range(0, len(body), _PIECE):
            made.add(body[at : at + _PIECE])
        made.end()
        return made

    # --- what connections are asked by their exchanges

    def common_headers(self) -> bytes:
        """None: each reader's connection has its own."""
        return b""

    def replied(self, exchange: Exchange) -> None:
        """The recorder tells by itself."""

    # --- what is said

    def say(self, status: int, content_type: bytes, headers: bytes, body: bytes) -> None:
        """All of it at once."""
        self.begin(status, content_type, headers)
        self.whole = True
        self.add(body)
        self.end()

    def begin(self, status: int, content_type: bytes, headers: bytes) -> None:
        """How it begins."""
        self.status, self.content_type, self.headers = status, content_type, headers

    def add(self, data: bytes) -> None:
        """One more piece."""
        self._pieces.append(data)
        self.size += len(data)
        self._held += len(data)
        self.tail = (self.tail[1], data)
        if self.size > self.room and not self.whole:
            self.room = math.inf
            self._grown(self)
        if not self.whole:
            self._tell()

    def remark(self, comment: bytes) -> None:
        """Something for those who read now, and nobody else."""
        for reader in tuple(self._readers):
            reader.hear(comment)

    def end(self, *, broken: bool = False) -> None:
        """Nothing more comes."""
        if self.over:
            return
        self.over, self.broken = True, broken
        self._ended(self)
        self._tell()

    def body(self) -> tuple[bytes, ...]:
        """All pieces of it."""
        return tuple(self._pieces)

    def _tell(self) -> None:
        for reader in tuple(self._readers):
            reader.read()
        self._trim()

    # --- who reads

    def attach(self, reader: Reader) -> None:
        """One more reads, from the beginning."""
        self._readers[reader] = None
        self.alone_since = None
        reader.exchange.listener = reader
        reader.read()

    def leave(self, reader: Reader) -> None:
        """One has left, or has read all of it."""
        self._readers.pop(reader, None)
        if not self._readers and not self.over:
            self.alone_since = time.monotonic()
            self._readers_gone(self)
        self._trim()

    def pieces(self, start: int) -> list[bytes]:
        """From this number on."""
        return self._pieces[start - self._first :]

    # --- what is too large to be kept

    def outgrow(self) -> None:
        """Keep no more of it than its slowest reader needs, and let it wait for that one."""
        self.kept = False
        self._trim()

    def lagged(self) -> None:
        """A reader has read on."""
        self._trim()

    def _trim(self) -> None:
        if self.kept:
            return
        read = min((reader.at for reader in self._readers), default=self._first + len(self._pieces)) - self._first
        if read:
            self._held -= sum(map(len, self._pieces[:read]))
            del self._pieces[:read]
            self._first += read
        self._pace()

    def _pace(self) -> None:
        paused = self._held > (_HELD // 2 if self.paused else _HELD)
        if paused is self.paused:
            return
        self.paused = paused
        listener = self.works()
        if listener is not None and paused:
            listener.client_paused()
        elif listener is not None:
            listener.client_resumed()


class Reader:
    """A client that hears a recording; the listener of its exchange.

    Args:
        recording: What it reads.
        exchange: The client.
        headers: Header lines of its own, before those of the reply.
        done: Called when it has got everything.

    Attributes:
        at: The number of the piece that it reads next.
    """

    def __init__(
        self,
        recording: Recording,
        exchange: Exchange,
        headers: bytes | None = None,
        done: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self.exchange = exchange
        self.at = 0
        self._recording = recording
        self._headers = headers
        self._done = done

    def read(self) -> None:
        """Pass on what is there, as fast as the client takes it."""
        recording, exchange = self._recording, self.exchange
        if exchange.gone or not recording.status:
            if recording.over:
                self._finish()
            return
        if recording.whole:
            self._read_whole()
            return
        for piece in recording.pieces(self.at):
            if exchange.paused:
                return
            self._begin()
            self.at += 1
            exchange.write(piece)
        if recording.over and not exchange.paused:
            self._finish()

    def hear(self, comment: bytes) -> None:
        """Pass on a remark, unless the client is behind anyway."""
        if not self.exchange.paused and not self.exchange.gone:
            self._begin()
            self.exchange.write(comment)

    def _read_whole(self) -> None:
        recording, exchange = self._recording, self.exchange
        if not recording.over:
            return
        exchange.extra = self._lines()
        recording.leave(self)
        exchange.reply(recording.status, b"".join(recording.body()), recording.content_type, recording.headers)
        self._done(exchange)

    def _begin(self) -> None:
        if not self.exchange.status:
            self.exchange.extra = self._lines()
            self.exchange.start(self._recording.status, self._recording.content_type, self._recording.headers)

    def _lines(self) -> bytes:
        return self._recording.extra if self._headers is None else self.exchange.extra + self._headers

    def _finish(self) -> None:
        recording, exchange = self._recording, self.exchange
        exchange.listener = None
        recording.leave(self)
        if exchange.gone:
            return
        if recording.broken:
            exchange.cut()
            return
        self._begin()
        exchange.finish()
        self._done(exchange)

    # --- what the client does

    def client_gone(self) -> None:
        """It needs nothing more."""
        self.exchange.listener = None
        self._recording.leave(self)

    def client_paused(self) -> None:
        """It gets the next piece when it has read the last."""

    def client_resumed(self) -> None:
        """Go on."""
        self.read()
        self._recording.lagged()
