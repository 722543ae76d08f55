"""A client that sees how its reply ends: every byte of it, and what HTTP and server-sent events say of the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.seen import End, Reply

__all__ = ["Client", "post"]

_OK = 200
_FIELDS = {"message", "type", "param", "code"}
_READ = 256 * 1024


@dataclass
class _Raw:
    """What has come."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    complete: bool = False
    silent: bool = False
    left: bool = False


class Client:
    """One request on a connection of its own.

    Args:
        port: Of the gateway, on the loopback interface.
        body: The request's.
        patience_s: How long it waits for something to come, again and again.
        secrets: What must not be read in a reply, for instance the addresses of engines.
    """

    def __init__(self, port: int, body: Mapping[str, Any], patience_s: float, secrets: tuple[str, ...] = ()) -> None:
        self._port = port
        self._body = body
        self._patience_s = patience_s
        self._secrets = secrets
        self._raw = _Raw()
        self.events = 0
        self.progress = asyncio.Event()

    async def ask(self, truth: str | None = None, *, pause: Callable[[], Awaitable[None]] | None = None) -> Reply:
        """Ask and read until the end.

        Args:
            truth: What the whole answer says; None if nobody knows.
            pause: Waited for after the head, while nothing is read; the body is then only counted.
        """
        began = time.perf_counter()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                await self._exchange(pause)
            except TimeoutError:
                self._raw.silent = True
        return self._judge(truth, time.perf_counter() - began, counted=pause is not None)

    async def _exchange(self, pause: Callable[[], Awaitable[None]] | None) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(_request(self._body))
            await self._head(reader)
            if pause is not None:
                await pause()
            await self._read_body(reader, keep=pause is None)
        except asyncio.CancelledError:
            self._raw.left = True
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._patience_s)
        first, *lines = head.decode("latin-1").split("\r\n")
        self._raw.status = int(first.split(" ")[1])
        pairs = (line.split(":", 1) for line in lines if line)
        self._raw.headers = {name.lower(): value.strip() for name, value in pairs}

    async def _read_body(self, reader: asyncio.StreamReader, *, keep: bool) -> None:
        length = self._raw.headers.get("content-length")
        if length is not None:
            self._take(await asyncio.wait_for(reader.readexactly(int(length)), self._patience_s), keep=True)
        elif "chunked" in self._raw.headers.get("transfer-encoding", ""):
            while size := int(await asyncio.wait_for(reader.readuntil(b"\r\n"), self._patience_s), 16):
                self._take((await asyncio.wait_for(reader.readexactly(size + 2), self._patience_s))[:-2], keep=keep)
            await asyncio.wait_for(reader.readexactly(2), self._patience_s)
        else:
            while data := await asyncio.wait_for(reader.read(_READ), self._patience_s):
                self._take(data, keep=keep)
        self._raw.complete = True

    def _take(self, data: bytes, *, keep: bool) -> None:
        self._raw.size += len(data)
        self._raw.body += data
        if not keep:
            del self._raw.body[:-_READ]
            return
        self.events = self._raw.body.count(b"data:")
        self.progress.set()

    async def seen(self, events: int) -> None:
        """Wait until so many events have come."""
        while self.events < events:
            self.progress.clear()
            await self.progress.wait()

    def _judge(self, truth: str | None, seconds: float, *, counted: bool) -> Reply:
        raw = self._raw
        text = raw.body.decode("utf-8", "replace")
        reply = Reply(seconds=seconds, status=raw.status, events=self.events, size=raw.size)
        reply.leaks = any(secret in text for secret in self._secrets)
        after = raw.headers.get("retry-after", "")
        reply.retry_after = int(after) if after.isdigit() else None
        if raw.left:
            reply.end = End.LEFT
        elif raw.status is None or raw.silent:
            reply.end = End.SILENCE if raw.silent else End.CUT
        elif raw.status != _OK:
            reply.end = End.REFUSED
            _read_error(reply, _json(text))
        elif "event-stream" in raw.headers.get("content-type", ""):
            _read_stream(reply, text, truth, complete=raw.complete, counted=counted)
        else:
            _read_document(reply, text, truth, complete=raw.complete)
        return reply


async def post(port: int, path: str, method: str = "POST") -> tuple[int, bytes]:
    """Ask for another page, for instance a gateway's own API; its status and its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(-1), 10)).partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body
    finally:
        writer.close()


def _request(body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: gateway", "content-type: application/json"]
    lines += ["authorization: Bearer sk-faults", f"content-length: {len(data)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def _json(text: str) -> Any:  # noqa: ANN401 - whatever a gateway answers
    try:
        return json.loads(text)
    except ValueError:
        return None


def _read_error(reply: Reply, document: Any) -> None:  # noqa: ANN401 - whatever a gateway answers
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        reply.code = str(error.get("code") or "")
        reply.openai = set(error) == _FIELDS


def _read_document(reply: Reply, text: str, truth: str | None, *, complete: bool) -> None:
    document = _json(text)
    if not complete:
        reply.end = End.CUT
        return
    try:
        reply.text = document["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        reply.end = End.FALSE
        return
    reply.end = End.WHOLE if truth in {None, reply.text} else End.FALSE


def _read_stream(reply: Reply, text: str, truth: str | None, *, complete: bool, counted: bool) -> None:
    lines = [line[5:].strip() for line in text.replace("\r\n", "\n").split("\n") if line.startswith("data:")]
    done = bool(lines) and lines[-1] == "[DONE]"
    chunks = [_json(line) for line in (lines[:-1] if done else lines)]
    errors = [chunk for chunk in chunks if isinstance(chunk, dict) and "error" in chunk]
    if counted:
        reply.end = End.WHOLE if complete and done else End.CUT
        return
    good = [chunk for chunk in chunks if isinstance(chunk, dict) and "choices" in chunk]
    reply.text = "".join(_deltas(good, "content"))
    reply.doubled = tuple(_doubled(good))
    if errors:
        _read_error(reply, errors[-1])
        reply.end = End.EVENT_DONE if done else End.EVENT
    elif not complete:
        reply.end = End.CUT
    elif not done:
        reply.end = End.SHORT
    else:
        spoiled = len(good) < len(chunks) or truth not in {None, reply.text}
        reply.end = End.FALSE if spoiled else End.WHOLE


def _deltas(chunks: list[Any], name: str) -> list[str]:
    deltas = [choice.get("delta") or {} for chunk in chunks for choice in chunk["choices"]]
    return [delta[name] for delta in deltas if delta.get(name)]


def _doubled(chunks: list[Any]) -> list[str]:
    finished = [choice for chunk in chunks for choice in chunk["choices"] if choice.get("finish_reason")]
    counts = {
        "role": len(_deltas(chunks, "role")),
        "usage": sum(1 for chunk in chunks if chunk.get("usage")),
        "finish_reason": len(finished),
        "id": len({chunk.get("id") for chunk in chunks}),
    }
    return [name for name, count in counts.items() if count > 1]
