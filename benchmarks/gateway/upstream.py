"""The engine of the benchmark: an HTTP/1.1 server that sends the next chunk when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from benchmarks.gateway.wire import Asked, Script

__all__ = ["Exchange", "Upstream"]

_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
_MESSAGES = 2


class Exchange:
    """One request under way, as seen from the engine: the next piece leaves when the client has the last one.

    Args:
        model: The name by which the engine must be asked.
        reply: What it answers.
        with_ids: What it answers when it is asked for the ids of tokens.
        stream: Whether it must be asked for a stream.
    """

    __slots__ = ("_engine", "_frames", "_sent", "_with_ids", "model", "reply", "stream")

    def __init__(self, model: str, reply: Script, with_ids: Script, *, stream: bool) -> None:
        self.model = model
        self.reply = reply
        self.stream = stream
        self._with_ids = with_ids
        self._engine: asyncio.WriteTransport | None = None
        self._frames = reply.frames
        self._sent = 0

    def begin(self, engine: asyncio.WriteTransport, asked: Asked) -> None:
        """The request has reached the engine: send the head and the first piece."""
        self._engine = engine
        self._frames = (self._with_ids if asked.return_token_ids else self.reply).frames
        self._sent = 1
        engine.write(self.reply.head + self._frames[0])

    def advance(self) -> None:
        """The client has the last piece: send the next one, if there is one."""
        if self._engine is not None and self._sent < len(self._frames):
            self._engine.write(self._frames[self._sent])
            self._sent += 1

    def check(self, asked: Asked) -> str | None:
        """What is wrong with the request that came through the proxy; None if it is right."""
        if asked.model != self.model:
            return f"the engine was asked for {asked.model!r} instead of {self.model!r}"
        if asked.stream != self.stream or len(asked.messages) != _MESSAGES:
            return "the request reached the engine with other fields than were sent"
        return None


class Upstream(asyncio.Protocol):
    """One connection from a proxy.

    Args:
        exchange: Finds the exchange that the request's `user` names.
        fail: Is told what went wrong.
        opened: The connections that are open, for closing them at the end.
    """

    def __init__(
        self,
        exchange: Callable[[str], Exchange | None],
        fail: Callable[[str], None],
        opened: set[asyncio.BaseTransport],
    ) -> None:
        self._exchange = exchange
        self._fail = fail
        self._opened = opened
        self._decode = msgspec.json.Decoder(Asked).decode
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._opened.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Proxies may close connections that are idle; a reply that is cut shows at the client."""
        del exc
        if self._transport is not None:
            self._opened.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Collect until a whole request is there, then answer it."""
        self._buffer = self._buffer + data if self._buffer else data
        head, end, body = self._buffer.partition(_END)
        if not end:
            return
        whole = _whole_body(head.lower(), body)
        if whole is not None:
            self._buffer = b""
            self._answer(head, whole)

    def _answer(self, head: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        if head.startswith(b"POST /v1/chat/completions "):
            self._begin(self._transport, body)
        else:
            self._transport.write(_side_answer(head))

    def _begin(self, transport: asyncio.Transport, body: bytes) -> None:
        try:
            asked = self._decode(body)
        except msgspec.MsgspecError as error:
            self._fail(f"the upstream got a body that it cannot read: {error}")
            return
        exchange = self._exchange(asked.user)
        wrong = f"unknown user {asked.user!r}" if exchange is None else exchange.check(asked)
        if exchange is None or wrong is not None:
            self._fail(str(wrong))
        else:
            exchange.begin(transport, asked)


def _whole_body(head: bytes, body: bytes) -> bytes | None:
    """The body in either coding that requests may have; None while some of it is missing."""
    at = head.find(_LENGTH)
    if at >= 0:
        length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])
        return body if len(body) >= length else None
    return _dechunk(body) if b"\r\ntransfer-encoding:" in head else b""


def _dechunk(raw: bytes) -> bytes | None:
    """The body without its chunked transfer coding; None while some of it is missing."""
    parts: list[bytes] = []
    while raw:
        size_line, _, rest = raw.partition(b"\r\n")
        size = int(size_line, 16)
        if len(rest) < size + 2:
            return None
        if not size:
            return b"".join(parts)
        parts.append(rest[:size])
        raw = rest[size + 2 :]
    return None


def _side_answer(head: bytes) -> bytes:
    """What routers ask for when they start: is it well, and which models are there."""
    path = head.split(b" ", 2)[1].split(b"?", 1)[0]
    known = {
        b"/health": b'{"status":"ok"}',
        b"/v1/models": b'{"object":"list","data":[{"id":"contacts","object":"model","created":1700000000,'
        b'"owned_by":"vllm","root":"contacts","max_model_len":8192}]}',
        b"/version": b'{"version":"0.32.0"}',
    }
    body = known.get(path)
    status = b"404 Not Found" if body is None else b"200 OK"
    body = body or b'{"error":{"message":"not here","type":"NotFoundError","code":404}}'
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
