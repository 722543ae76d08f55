"""A client of the benchmark: one keep-alive connection to an engine, one streamed completion at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httptools
import msgspec

from benchmarks.errors import BenchmarkError
from tuneplex.http.sse import EventFramer

__all__ = ["Answer", "Client", "Question"]

_READ = 64 * 1024
_OK = 200


class Question(msgspec.Struct, frozen=True):
    """What to ask: a model, a prompt as token ids, and how many tokens must come back."""

    model: str
    prompt: tuple[int, ...]
    tokens: int


class Answer(msgspec.Struct, frozen=True):
    """A complete reply.

    Attributes:
        tokens: Their ids.
        ttft_s: From sending the request to the first token.
        tpot_s: Between two tokens after the first one, on average; 0 for a single one.
    """

    tokens: tuple[int, ...]
    ttft_s: float
    tpot_s: float


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, object] | None = None


class Client:
    """Connects, asks, and checks what comes back; an async context manager.

    Args:
        uds: The engine's Unix socket.
    """

    def __init__(self, uds: Path) -> None:
        self._uds = uds
        self._decode = msgspec.json.Decoder(_Chunk).decode
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def close(self) -> None:
        """Leave; a reply that is under way is aborted in the engine."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def get(self, path: str) -> tuple[int, bytes]:
        """The status and the body of a page.

        Raises:
            OSError: Nobody answers.
            BenchmarkError: The reply was cut.
        """
        reply = _Reply()
        await self._exchange(f"GET {path} HTTP/1.1\r\nhost: engine\r\n\r\n".encode(), reply)
        return reply.status, b"".join(reply.parts)

    async def ask(self, question: Question) -> Answer:
        """Ask and wait for the whole answer.

        Raises:
            OSError: Nobody answers.
            BenchmarkError: The reply is not the one that was asked for: an error, cut, or with other token counts.
        """
        reply = _Reply(_Tokens(question, self._decode))
        await self._exchange(_request(question), reply)
        if reply.status != _OK or reply.tokens is None:
            raise BenchmarkError(
                f"{question.model}: {reply.status} {b''.join(reply.parts)[:500].decode('utf-8', 'replace')}"
            )
        return reply.tokens.answer()

    async def _exchange(self, request: bytes, reply: _Reply) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(str(self._uds))
        reader, writer = self._streams
        writer.write(request)
        reply.sent()
        while not reply.complete:
            data = await reader.read(_READ)
            if not data:
                await self.close()
                raise BenchmarkError("the engine closed the connection before the reply was complete")
            reply.feed(data)


class _Reply:
    """What the parser of one reply has found so far."""

    def __init__(self, tokens: _Tokens | None = None) -> None:
        self.status = 0
        self.complete = False
        self.parts: list[bytes] = []
        self.tokens = tokens
        self._parser = httptools.HttpResponseParser(self)

    def sent(self) -> None:
        """The request has left."""
        if self.tokens is not None:
            self.tokens.sent = time.perf_counter()

    def feed(self, data: bytes) -> None:
        """More bytes have come."""
        self._parser.feed_data(data)
        if self.tokens is not None and self.status == _OK:
            for part in self.parts:
                self.tokens.feed(part)
            self.parts.clear()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.complete = True


class _Tokens:
    """The tokens of one reply, and when they came."""

    def __init__(self, question: Question, decode: Callable[[bytes], _Chunk]) -> None:
        self.sent = 0.0
        self._question = question
        self._decode = decode
        self._events = EventFramer()
        self._ids: list[int] = []
        self._first = 0.0
        self._last = 0.0
        self._prompt: list[int] | None = None
        self._usage: _Usage | None = None
        self._finish: str | None = None
        self._done = False

    def feed(self, data: bytes) -> None:
        for line in self._events.feed(data).split(b"\n\n"):
            payload = line.strip().removeprefix(b"data: ")
            if payload == b"[DONE]":
                self._done = True
            elif payload:
                self._take(self._decode(payload))

    def _take(self, chunk: _Chunk) -> None:
        if chunk.error is not None:
            raise BenchmarkError(f"{self._question.model}: {chunk.error.get('message')}")
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            self._prompt = choice.prompt_token_ids or self._prompt
            self._finish = choice.finish_reason or self._finish
            if choice.token_ids:
                self._last = time.perf_counter()
                self._first = self._first or self._last
                self._ids += choice.token_ids

    def answer(self) -> Answer:
        """The answer, if it is as it must be."""
        wanted = self._question
        if not self._done or self._finish != "length" or self._usage is None:
            raise BenchmarkError(f"{wanted.model}: the stream ended with {self._finish!r}, done: {self._done}")
        counts = (len(self._prompt or ()), self._usage.prompt_tokens, len(self._ids), self._usage.completion_tokens)
        asked = (len(wanted.prompt), len(wanted.prompt), wanted.tokens, wanted.tokens)
        if counts != asked or tuple(self._prompt or ()) != wanted.prompt:
            raise BenchmarkError(f"{wanted.model}: {counts} tokens in and out instead of {asked}")
        between = (self._last - self._first) / (len(self._ids) - 1) if len(self._ids) > 1 else 0.0
        return Answer(tuple(self._ids), self._first - self.sent, between)


def _request(question: Question) -> bytes:
    body = msgspec.json.encode(
        {
            "model": question.model,
            "prompt": question.prompt,
            "max_tokens": question.tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
    )
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
