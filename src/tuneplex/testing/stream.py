"""Writes a response as a `Script` says: late, in odd pieces, broken off, or properly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tuneplex.testing.script import Record, Script
from tuneplex.testing.wire import Exchange

__all__ = ["DEAD", "BrokenOff", "Core", "Stream", "misbehave"]

# vLLM's `EngineDeadError`.
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

_SSE = [("content-type", "text/event-stream; charset=utf-8")]
_PHRASES = {400: "BadRequestError", 404: "NotFoundError", 429: "TooManyRequests", 503: "ServiceUnavailableError"}


class BrokenOff(Exception):
    """The response ended as its script wanted, not as HTTP wants."""


class Core:
    """The part of an engine that all its requests hang on.

    Args:
        die: Ends the whole engine.

    Attributes:
        die: See there.
        lost: It has run out of memory, say: nothing is generated any more.
    """

    def __init__(self, die: Callable[[], None]) -> None:
        self.die = die
        self.lost = False


async def misbehave(exchange: Exchange, record: Record, script: Script, die: Callable[[], None]) -> bool:
    """Do what the script wants before, or instead of, a proper answer.

    Returns:
        Whether the request is answered by this.

    Raises:
        BrokenOff: There will be no answer.
    """
    await _pause(script.before_headers_s)
    if script.die:
        die()
        raise BrokenOff
    if script.reset_before_headers:
        exchange.reset()
        raise BrokenOff
    if script.silent_before_headers:
        await exchange.gone.wait()
        raise BrokenOff
    if script.raw is not None:
        exchange.write(script.raw.encode("latin-1"))
        record.note_sent(script.raw.encode("latin-1"))
        exchange.close()
        raise BrokenOff
    if script.status is None and script.content_type is None:
        return False
    await _answer_instead(exchange, record, script)
    return True


async def _answer_instead(exchange: Exchange, record: Record, script: Script) -> None:
    status = script.status or 200
    kind = _PHRASES.get(status, "InternalServerError")
    shape = f'{{"error":{{"message":"Scripted.","type":"{kind}","param":null,"code":{status}}}}}'
    body = (shape if script.body is None else script.body).encode("utf-8", "surrogateescape")
    record.status = status
    headers = [("content-type", script.content_type or "application/json")]
    if script.retry_after is not None:
        headers.append(("retry-after", str(script.retry_after)))
    exchange.start(status, headers, length=len(body))
    exchange.send(body)
    record.note_sent(body)
    await exchange.drain()


async def _pause(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


class Stream:
    """A stream of server-sent events, each of which counts as one chunk.

    Args:
        exchange: Where it goes.
        record: Remembers what went out, and when.
        script: How to misbehave.
        core: Of the engine.
    """

    def __init__(self, exchange: Exchange, record: Record, script: Script, core: Core) -> None:
        self._exchange = exchange
        self._record = record
        self._script = script
        self._core = core
        self._count = 0
        self._held = b""

    def start(self) -> None:
        """Send the headers; vLLM does so before the first token exists."""
        self._record.status = 200
        self._exchange.start(200, _SSE)

    async def event(self, data: bytes) -> None:
        """Send one event, after the delays and faults that come before it."""
        await self._reach(self._count)
        await _pause(self._script.between_chunks_s if self._count else self._script.before_first_chunk_s)
        if self._script.lockstep:
            await self._record.released()
        if self._core.lost:
            await self._fail(DEAD)
        await self._hold(data)
        self._count += 1
        if self._count % self._script.join == 0:
            await self._flush()

    async def _hold(self, data: bytes) -> None:
        """Put one event, or what becomes of it, to what is sent next."""
        script = self._script
        if self._count == script.garble_chunk:
            data = b"data: {nonsense\n\n"
        if script.crlf:
            data = data.replace(b"\n", b"\r\n")
        self._held += data * 2 if self._count == script.repeat_chunk else data
        if self._count == script.break_in_chunk:
            self._held = self._held[: -len(data) // 2]
            await self._flush()
            self._exchange.reset()
            raise BrokenOff

    async def _reach(self, count: int) -> None:
        script = self._script
        if count in (script.silent_after_chunks, script.reset_after_chunks, script.close_after_chunks):
            await self._flush()
        if count == script.silent_after_chunks:
            await self._exchange.gone.wait()
            raise BrokenOff
        if count == script.reset_after_chunks:
            await self._drained()
            self._exchange.reset()
            raise BrokenOff
        if count == script.close_after_chunks:
            self._exchange.close()
            raise BrokenOff
        if count == script.die_after_chunks:
            self._core.die()
            raise BrokenOff
        if count == script.error_after_chunks:
            await self._fail("Internal server error")

    async def _fail(self, words: str) -> None:
        told = b'{"message": "%b", "type": "InternalServerError", "param": null, "code": 500}' % words.encode()
        error = b'{"error": %b}' % told
        if self._script.body is not None:
            error = self._script.body.encode()
        self._held += b"data: %b\n\ndata: [DONE]\n\n" % error
        await self._flush()
        self._exchange.finish()
        raise BrokenOff

    async def flood(self) -> None:
        """Send events with nothing but filling in them, until the script's size is reached."""
        event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
        filled = event % (b"x" * max(1, self._script.flood_event - len(event) + 2))
        for _ in range(self._script.flood // len(filled)):
            self._exchange.send(filled)
            self._record.note_sent(filled, keep=False)
            await self._drained()

    async def finish(self, last: bytes) -> None:
        """Send `last`, where there is anything to send, and end the body."""
        await self._reach(self._count)
        if last and not self._script.drop_done:
            await self.event(last)
        await self._flush()
        self._exchange.finish()

    async def _flush(self) -> None:
        held, self._held = self._held, b""
        size = self._script.cut or len(held) or 1
        for at in range(0, len(held), size):
            piece = held[at : at + size]
            self._exchange.send(piece)
            self._record.note_sent(piece)
            await self._drained()

    async def _drained(self) -> None:
        await self._exchange.drain()
        # Others get their turn after every piece, however fast the client reads.
        await asyncio.sleep(0)
