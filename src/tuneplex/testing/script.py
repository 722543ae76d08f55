"""How FakeEngine is told to misbehave, and what it remembers of each request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

__all__ = ["Record", "Script", "Sent"]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request is answered where that differs from a healthy engine. Times are in seconds.

    Attributes:
        before_headers_s: Waits before the response begins.
        before_first_chunk_s: Waits after the headers, before the first chunk.
        between_chunks_s: Waits before each further chunk.
        text: Says exactly this, instead of what the fake's language model would say.
        cut: Sends a stream in pieces of this many bytes, wherever that cuts an event or a character.
        join: Sends this many events of a stream in one piece.
        crlf: Ends the lines of a stream with CR LF.
        lockstep: Sends each chunk of a stream only after `Record.release`.
        silent_before_headers: Takes the request and never answers.
        silent_after_chunks: Sends nothing more after so many chunks.
        reset_before_headers: Resets the connection instead of answering.
        reset_after_chunks: Resets the connection after so many chunks.
        close_after_chunks: Ends the connection in an orderly way after so many chunks, within the HTTP body.
        break_in_chunk: Sends half of this chunk, counted from 0, and then resets the connection.
        garble_chunk: Sends nonsense instead of this chunk, and goes on.
        repeat_chunk: Sends this chunk twice.
        drop_done: Ends a stream without `[DONE]`.
        error_after_chunks: Sends an error event, as vLLM does when generating fails, and then `[DONE]`.
        status: Answers with this status instead, and with `body`.
        body: For `status`, `content_type` or `error_after_chunks`; the default is vLLM's own shape of an error.
        content_type: Of that answer.
        retry_after: Of that answer, in its header `retry-after`; seconds.
        raw: Sends these characters (Latin-1) instead of an HTTP response, then closes.
        die: The engine runs out of memory now: every connection is reset, a process ends.
        die_after_chunks: The same, after so many chunks.
        flood: Streams about this many bytes of events, made while they are sent.
        flood_event: The size of one event of a flood.
    """

    before_headers_s: float = 0.0
    before_first_chunk_s: float = 0.0
    between_chunks_s: float = 0.0
    text: str | None = None
    cut: int = 0
    join: int = 1
    crlf: bool = False
    lockstep: bool = False
    silent_before_headers: bool = False
    silent_after_chunks: int | None = None
    reset_before_headers: bool = False
    reset_after_chunks: int | None = None
    close_after_chunks: int | None = None
    break_in_chunk: int | None = None
    garble_chunk: int | None = None
    repeat_chunk: int | None = None
    drop_done: bool = False
    error_after_chunks: int | None = None
    status: int | None = None
    body: str | None = None
    content_type: str | None = None
    retry_after: int | None = None
    raw: str | None = None
    die: bool = False
    die_after_chunks: int | None = None
    flood: int = 0
    flood_event: int = 4096

    @classmethod
    def parse(cls, text: str | bytes) -> Script:
        """Read a script from JSON, for instance `{"reset_after_chunks": 3}`.

        Raises:
            ValueError: It is not JSON, or names a field that does not exist.
        """
        return msgspec.json.decode(text, type=cls)


class Sent(msgspec.Struct, frozen=True):
    """One piece of a response body.

    Attributes:
        at: When it was handed to the socket, on the clock of `time.perf_counter`.
        data: The bytes, without HTTP's own framing.
    """

    at: float
    data: bytes


class Record:
    """One request that a FakeEngine got, and what became of it.

    Attributes:
        method: Of the request.
        path: Of the request, with its query.
        headers: Names in lower case; of repeated ones the last.
        body: Of the request.
        script: How it was answered.
        received_at: When all of it had come, on the clock of `time.perf_counter`, as are the other times.
        model: The model it named, once that was understood.
        cache_salt: What its prompt is kept apart by in the prefix cache, None for nothing.
        prompt_ids: The token ids of its (first) prompt.
        reply_ids: The token ids that were generated so far, for each choice.
        finish_reasons: Why each choice ended; missing while it has not.
        status: Of the response, None before its headers are sent.
        sent: The pieces of the response's body. A flood's pieces are counted in `sent_bytes` but not kept.
        sent_bytes: How much of the response's body was handed to the socket.
        ended_at: When the engine was through with it: answered, broken off or left alone.
        left_at: When the client's side of the connection was gone before the answer was complete.
        left: Set when that happens.
        ended: Set when the engine is through with it.
    """

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.script = Script()
        self.received_at = time.perf_counter()
        self.model: str | None = None
        self.cache_salt: str | None = None
        self.prompt_ids: list[int] = []
        self.reply_ids: list[list[int]] = []
        self.finish_reasons: dict[int, str] = {}
        self.status: int | None = None
        self.sent: list[Sent] = []
        self.sent_bytes = 0
        self.ended_at: float | None = None
        self.left_at: float | None = None
        self.left = asyncio.Event()
        self.ended = asyncio.Event()
        self._pieces = 0
        self._progress = asyncio.Event()
        self._released = asyncio.Semaphore(0)

    def __repr__(self) -> str:
        return f"Record({self.method} {self.path}, model={self.model!r}, status={self.status})"

    @property
    def json(self) -> Any:  # noqa: ANN401 - a request body is whatever JSON the client sent
        """The request's body, decoded."""
        return msgspec.json.decode(self.body)

    def release(self, chunks: int = 1) -> None:
        """Let so many more chunks of a lock-step stream go."""
        for _ in range(chunks):
            self._released.release()

    async def released(self) -> None:
        """Wait for leave to send the next chunk."""
        await self._released.acquire()

    async def sent_pieces(self, count: int) -> None:
        """Wait until so many pieces of the body have been handed to the socket."""
        while self._pieces < count:
            self._progress.clear()
            await self._progress.wait()

    def note_sent(self, data: bytes, *, keep: bool = True) -> None:
        """Remember one piece of the body that has just gone out."""
        if keep:
            self.sent.append(Sent(time.perf_counter(), data))
        self.sent_bytes += len(data)
        self._pieces += 1
        self._progress.set()

    def note_left(self) -> None:
        """The client's side of the connection is gone."""
        if self.left_at is None and self.ended_at is None:
            self.left_at = time.perf_counter()
            self.left.set()

    def note_ended(self) -> None:
        """The engine is through with it."""
        if self.ended_at is None:
            self.ended_at = time.perf_counter()
            self.ended.set()

    def summary(self) -> dict[str, Any]:
        """The parts of it that are plain JSON, for `GET /fake/requests`."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": self.body.decode("utf-8", "replace"),
            "model": self.model,
            "cache_salt": self.cache_salt,
            "status": self.status,
            "prompt_ids": self.prompt_ids,
            "reply_ids": self.reply_ids,
            "finish_reasons": {str(index): reason for index, reason in self.finish_reasons.items()},
            "sent_bytes": self.sent_bytes,
            "left": self.left_at is not None,
            "ended": self.ended_at is not None,
        }
