"""The upstream client by itself, against servers that answer exact bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from tuneplex.http import Broken, Endpoint, Pool, Unreachable, UpstreamFault

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], object]


class Waiter:
    """Collects a reply."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def reply_started(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The head."""
        assert all(name.islower() for name in headers)
        self.status = status

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """A piece."""
        self.body += data
        if done:
            self.done.set_result(self.body)

    def reply_failed(self, fault: UpstreamFault) -> None:
        """The end, too early."""
        self.done.set_exception(fault)


class Server:
    """Answers the requests of each connection with the bytes of a list; an empty item closes the connection."""

    def __init__(self, *connections: list[bytes]) -> None:
        self.connections = list(connections)
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self.connections.pop(0):
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()
            else:
                await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def pool_to(server: Server) -> AsyncIterator[Pool]:
    """A pool of connections to that server."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    pool = Pool(Endpoint(host="127.0.0.1", port=listening.sockets[0].getsockname()[1]))
    try:
        yield pool
    finally:
        pool.close()
        listening.close()
        await asyncio.sleep(0.01)  # the connections' ends have to be seen


async def ask(pool: Pool) -> bytes:
    """Send one request and wait for the body."""
    waiter = Waiter()
    pool.send(REQUEST, waiter, connect_timeout_s=5)
    return await asyncio.wait_for(waiter.done, 5)


async def test_connections_are_kept_and_used_again() -> None:
    """Three requests, one connection."""
    server = Server([OK, OK, OK])
    async with pool_to(server) as pool:
        assert [await ask(pool) for _ in range(3)] == [b"ok"] * 3
        assert pool.idle == 1


async def test_a_stale_connection_is_replaced_once() -> None:
    """A kept connection that ends without a byte costs a second try; a new one that does so is an error."""
    server = Server([OK, b""], [OK])
    async with pool_to(server) as pool:
        assert await ask(pool) == b"ok"
        assert await ask(pool) == b"ok"
        assert server.requests == 3
    server = Server([b""])
    async with pool_to(server) as pool:
        with pytest.raises(Broken):
            await ask(pool)
        assert server.requests == 1


async def test_a_request_is_not_repeated_once_a_byte_has_come() -> None:
    """Even half a status line shows that the server has begun to work."""
    server = Server([OK, b"HTTP/1.1 2", b""])
    async with pool_to(server) as pool:
        await ask(pool)
        waiter = Waiter()
        call = pool.send(REQUEST, waiter, connect_timeout_s=5)
        await asyncio.sleep(0.05)
        assert call.connection is not None
        call.connection.transport.close()
        with pytest.raises(Broken):
            await waiter.done
        assert server.requests == 2


@pytest.mark.parametrize(
    "answer, body",
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nt: z\r\n\r\n", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok", b"ok"),
        (OK + b"surplus", b"ok"),
    ],
)
async def test_replies_of_every_framing_are_read(answer: bytes, body: bytes) -> None:
    """Interim replies, chunks, no body, and a server that says more than it should."""
    async with pool_to(Server([answer])) as pool:
        assert await ask(pool) == body


async def test_a_reply_without_length_ends_with_its_connection() -> None:
    """As HTTP/1.0 servers do it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = Pool(Endpoint(host="127.0.0.1", port=listening.sockets[0].getsockname()[1]))
    assert await ask(pool) == b"ok"
    assert pool.idle == 0
    listening.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
)
async def test_what_is_not_http_is_broken(answer: bytes) -> None:
    """And the connection is not used again."""
    async with pool_to(Server([answer])) as pool:
        with pytest.raises(Broken):
            await ask(pool)
        assert pool.idle == 0


async def test_nobody_there() -> None:
    """A refused connection, a missing socket and an unknown host are unreachable."""
    for text in ("http://127.0.0.1:1", "unix:/nonexistent/socket", "http://host.invalid:1"):
        with pytest.raises(Unreachable):
            await ask(Pool(Endpoint.parse(text)))


async def test_an_aborted_call_hears_nothing_more() -> None:
    """While connecting and while waiting for the reply."""
    server = Server([OK], [OK])
    async with pool_to(server) as pool:
        waiter = Waiter()
        pool.send(REQUEST, waiter, connect_timeout_s=5).abort()
        call = pool.send(REQUEST, waiter, connect_timeout_s=5)
        assert call.connecting is not None
        await call.connecting
        call.abort()
        await asyncio.sleep(0.05)
        assert not waiter.done.done()
        assert waiter.status == 0


async def test_unasked_bytes_end_an_idle_connection() -> None:
    """A server that speaks out of turn could answer the wrong request next."""
    server = Server([OK], [OK])
    async with pool_to(server) as pool:
        await ask(pool)
        connection = pool._idle[0]
        connection.data_received(OK)
        await asyncio.sleep(0)
        assert await ask(pool) == b"ok"
