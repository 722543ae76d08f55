"""The load: the upstream and the clients, in one process on one core, in lock step with each other."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.errors import BenchmarkError
from benchmarks.gateway.client import Client, TimedClient
from benchmarks.gateway.pace import Pace, PacedExchange
from benchmarks.gateway.upstream import Exchange, Upstream
from benchmarks.gateway.wire import client_request, script

__all__ = ["Kind", "Load", "Names"]

_STUCK_S = 30.0
_NO_END = 10**9


@dataclass(frozen=True, slots=True)
class Kind:
    """What is measured.

    Attributes:
        name: `stream`, `unary` and so on, as in tables and files.
        stream: Whether the reply is a stream of server-sent events.
        connections: How many clients run side by side, each on one keep-alive connection.
        paced: Chunks leave at the pace of an engine, instead of in lock step.
        timed: The time to the first piece of each reply is noted.
    """

    name: str
    stream: bool
    connections: int
    paced: bool = False
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """The model's name as the client says it and as the engine must hear it."""

    client: str
    engine: str


class Load:
    """The upstream, and the clients of the phase under way.

    An async context manager: the upstream's addresses stay the same until it ends.

    Attributes:
        port: Where the upstream listens on the loopback interface.
        path: The Unix socket on which it listens as well.
        pace: Of paced streams, with the ages of their chunks.
        first_us: How long first pieces took, where that is noted; microseconds.
    """

    def __init__(self) -> None:
        self.port = 0
        self.path = ""
        self.pace = Pace()
        self.first_us: list[float] = []
        self._exchanges: dict[str, Exchange] = {}
        self._opened: set[asyncio.BaseTransport] = set()
        self._open = AsyncExitStack()
        self._clients: list[Client] = []
        self._over: asyncio.Future[None] | None = None
        self._to_send = 0
        self._under_way = 0
        self._completed = 0
        self._until = 0.0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            tcp = await loop.create_server(self._accept, "127.0.0.1", 0)
            stack.callback(tcp.close)
            self.port = tcp.sockets[0].getsockname()[1]
            self.path = f"{stack.enter_context(TemporaryDirectory(prefix='tp', dir='/tmp'))}/engine.sock"
            unix = await loop.create_unix_server(self._accept, self.path)
            stack.callback(unix.close)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for transport in tuple(self._opened):
            transport.close()
        await self._open.aclose()

    def _accept(self) -> Upstream:
        return Upstream(self._exchanges.get, self._fail, self._opened)

    @asynccontextmanager
    async def clients(self, kind: Kind, names: Names, port: int) -> AsyncIterator[None]:
        """Connect the clients of one phase to the proxy at `port`; `drive` sets them to work."""
        loop = asyncio.get_running_loop()
        self._exchanges.clear()
        if kind.paced:
            self.pace.start()
        try:
            for slot in range(kind.connections):
                make = partial(self._client, slot, kind, names)
                _, client = await loop.create_connection(make, "127.0.0.1", port)
                self._clients.append(client)
            yield
        finally:
            self.pace.stop()
            for client in self._clients:
                client.close()
            self._clients.clear()
            self._under_way = 0

    def _client(self, slot: int, kind: Kind, names: Names) -> Client:
        reply, with_ids = (script(slot, names.engine, stream=kind.stream, ids=ids) for ids in (False, True))
        exchange: Exchange
        if kind.paced:
            exchange = PacedExchange(names.engine, reply, with_ids, self.pace)
        else:
            exchange = Exchange(names.engine, reply, with_ids, stream=kind.stream)
        self._exchanges[f"slot-{slot}"] = exchange
        request = client_request(slot, names.client, stream=kind.stream)
        expected = script(slot, names.client, stream=kind.stream)
        if kind.timed:
            return TimedClient(request, expected, exchange, self._finished, self._fail, times=self.first_us)
        return Client(request, expected, exchange, self._finished, self._fail)

    async def drive(self, count: int, seconds: float, stuck_s: float = _STUCK_S) -> int:
        """Send `count` requests, or as many as can be begun within `seconds`; how many were answered.

        Args:
            count: Requests, over all clients.
            seconds: No request begins later.
            stuck_s: How much longer the last ones may take.

        Raises:
            BenchmarkError: A reply is not as it must be, or does not come.
        """
        over = self._over = asyncio.get_running_loop().create_future()
        self._completed = 0
        self._to_send = count
        self._until = time.monotonic() + seconds
        for client in self._clients[:count]:
            self._send(client)
        try:
            await asyncio.wait_for(over, seconds + stuck_s)
        except TimeoutError:
            raise BenchmarkError(self._stuck()) from None
        return self._completed

    def begin(self, seconds: float) -> None:
        """Let every client send one request after the other from now on; they begin at random within `seconds`."""
        self._over = asyncio.get_running_loop().create_future()
        self._to_send, self._until = _NO_END, math.inf
        draw = random.Random(len(self._clients))  # noqa: S311 - no secret is made here
        for client in self._clients:
            self.pace.at(time.perf_counter() + seconds * draw.random(), partial(self._send, client))

    async def flow(self, seconds: float) -> int:
        """Let them for so long; how many requests were answered meanwhile.

        Raises:
            BenchmarkError: A reply is not as it must be.
        """
        before = self._completed
        with contextlib.suppress(TimeoutError):
            if self._over is not None:
                await asyncio.wait_for(asyncio.shield(self._over), seconds)
        return self._completed - before

    async def ebb(self) -> None:
        """Let no further request begin, and wait for the replies to those that have.

        Raises:
            BenchmarkError: A reply is not as it must be, or does not come.
        """
        self._to_send = 0
        try:
            if self._over is not None and self._under_way:
                await asyncio.wait_for(self._over, _STUCK_S)
        except TimeoutError:
            raise BenchmarkError(self._stuck()) from None

    def _send(self, client: Client) -> None:
        self._to_send -= 1
        self._under_way += 1
        client.send()

    def _finished(self, client: Client) -> None:
        """A client has its whole reply: give it the next request, or let it rest."""
        self._completed += 1
        self._under_way -= 1
        if self._to_send > 0 and time.monotonic() < self._until:
            self._send(client)
        elif not self._under_way and self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _fail(self, why: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(BenchmarkError(why))

    def _stuck(self) -> str:
        states = sorted({client.waiting for client in self._clients})
        return f"no progress: {self._under_way} requests wait for {', '.join(states[:4])}"
