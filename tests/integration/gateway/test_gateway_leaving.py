"""A gateway that leaves its socket to another one: what it has is finished, and no client gets an error by it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from tests.support.gateways import KEY, gateway_of
from tuneplex.gateway import ConnectionLimits, serve
from tuneplex.testing import FakeEngine, Script

BODY = b'{"model": "base", "prompt": "hello", "max_tokens": 8, "ignore_eos": true%b}'


def question(more: bytes = b"") -> bytes:
    """One request as bytes."""
    body = BODY % more
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
    return head % (KEY.encode(), len(body)) + body


class Leaving:
    """A gateway on a socket that somebody else has open, too, as the supervisor has."""

    def __init__(self, engine: FakeEngine, tls: tuple[str, str] | None) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.leave, self.stop = asyncio.Event(), asyncio.Event()
        gateway = gateway_of(engine.endpoint)
        limits = ConnectionLimits(idle_s=2.0)
        cert, key = tls or (None, None)
        stop, leave = self.stop, self.leave
        works = serve(gateway, self.socket.dup(), tls_cert=cert, tls_key=key, stop=stop, leave=leave, limits=limits)
        self.task = asyncio.create_task(works)
        self.context = ssl.create_default_context(cafile=cert) if cert else None
        if self.context is not None:
            self.context.check_hostname = False

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's connection."""
        return await asyncio.open_connection(*self.socket.getsockname(), ssl=self.context)


@pytest.fixture(params=["plain", "tls"])
async def leaving(
    engine: FakeEngine, certificate: tuple[str, str], request: pytest.FixtureRequest
) -> AsyncIterator[Leaving]:
    """One, with and without TLS; at the end of the test it is gone."""
    leaving = Leaving(engine, certificate if request.param == "tls" else None)
    yield leaving
    leaving.stop.set()
    await leaving.task
    leaving.socket.close()


async def reply(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next reply."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head.lower(), await reader.readexactly(int(length.partition(b":")[2]))


async def test_idle_connections_may_ask_once_more(leaving: Leaving) -> None:
    """A request that was on its way is answered, the client is told that the connection ends, and it ends."""
    reader, writer = await leaving.connect()
    writer.write(question())
    head, body = await reply(reader)
    assert b"connection: close" not in head
    leaving.leave.set()
    await asyncio.sleep(0.3)
    assert not leaving.task.done()
    writer.write(question())
    head, again = await reply(reader)
    assert b"200 ok" in head
    assert b"connection: close" in head
    assert again.partition(b'"choices"')[2] == body.partition(b'"choices"')[2]
    assert await reader.read() == b""
    writer.close()
    await leaving.task


async def test_idle_connections_end_in_their_time(leaving: Leaving) -> None:
    """One that asks nothing more ends when it was idle for as long as it may be, and with it the gateway."""
    reader, writer = await leaving.connect()
    writer.write(question())
    await reply(reader)
    leaving.leave.set()
    assert await reader.read() == b""
    writer.close()
    await leaving.task


async def test_what_has_come_already_is_answered(leaving: Leaving) -> None:
    """Of requests that were sent at once each gets its reply, in order, and only the last one ends the connection."""
    reader, writer = await leaving.connect()
    writer.write(question())
    await reply(reader)
    leaving.leave.set()
    await asyncio.sleep(0.2)
    writer.write(question() * 3)
    heads = [(await reply(reader))[0] for _ in range(3)]
    assert [b"connection: close" in head for head in heads] == [False, False, True]
    assert await reader.read() == b""
    writer.close()
    await leaving.task


async def test_streams_finish(leaving: Leaving, engine: FakeEngine) -> None:
    """A stream goes on to its end, and the reply that begins while the gateway leaves says that it is the last."""
    engine.script(Script(between_chunks_s=0.05))
    reader, writer = await leaving.connect()
    writer.write(question(b', "stream": true'))
    await reader.readuntil(b"data: ")
    leaving.leave.set()
    assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.write(question())
    assert b"connection: close" in (await reply(reader))[0]
    writer.close()
    await leaving.task


async def test_new_connections_wait_for_the_next_one(engine: FakeEngine) -> None:
    """Who connects after it has left is served by the gateway that takes its place on the same socket."""
    leaving = Leaving(engine, None)
    reader, writer = await leaving.connect()
    leaving.leave.set()
    await asyncio.sleep(0.3)
    late_reader, late_writer = await leaving.connect()
    late_writer.write(question())
    stop = asyncio.Event()
    following = asyncio.create_task(serve(gateway_of(engine.endpoint), leaving.socket.dup(), stop=stop))
    head, _body = await reply(late_reader)
    assert b"200 ok" in head
    assert b"connection: close" not in head
    leaving.socket.close()
    for one in (writer, late_writer):
        one.close()
    await leaving.task
    stop.set()
    await following
    assert await reader.read() == b""
