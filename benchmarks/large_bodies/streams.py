"""The streams whose chunks are timed: engine and clients in one process, so that both go by one clock."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import cast

from benchmarks.errors import BenchmarkError
from tuneplex.testing import FakeEngine

__all__ = ["Streams"]

_EVENT = b"data: {"
_TOKENS = 7_000
_AT_ONCE = 16  # streams that are opened together
_PATIENCE_S = 30.0
_PAUSE_S = 0.01
_SPREAD = 0.25  # of the pace, so that the streams do not go in step


class _Client(asyncio.Protocol):
    """One stream: when which event came."""

    def __init__(self, request: bytes) -> None:
        self.arrived: list[float] = []
        self.head = b""
        self.ended = False
        self._request = request
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.head = self.head or data
        joined = self._tail + data
        self.arrived += [now] * joined.count(_EVENT)
        self._tail = joined[-len(_EVENT) + 1 :]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended = True


class Streams:
    """Long streams from a FakeEngine through a gateway.

    Args:
        engine: Speaks.
        count: How many streams.
        pace_s: Between two chunks of each.
    """

    def __init__(self, engine: FakeEngine, count: int, pace_s: float) -> None:
        self._engine = engine
        self._count = count
        self._pace_s = pace_s
        self._clients: list[_Client] = []
        self._transports: list[asyncio.BaseTransport] = []

    async def start(self, port: int, key: str) -> None:
        """Open all, and wait until each has said something."""
        loop = asyncio.get_running_loop()
        chance = random.Random(self._count)  # noqa: S311 - pauses are no secret
        for number in range(self._count):
            pace_s = self._pace_s * chance.uniform(1 - _SPREAD, 1 + _SPREAD)
            request = _request(number, key, pace_s)
            transport, client = await loop.create_connection(lambda sent=request: _Client(sent), "127.0.0.1", port)  # type: ignore[misc]
            self._clients.append(client)
            self._transports.append(transport)
            if number % _AT_ONCE == 0 or number == self._count - 1:
                await self._begun()

    async def _begun(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not all(client.arrived for client in self._clients):
            self._check(late=time.monotonic() > until)
            await asyncio.sleep(_PAUSE_S)

    def lags_ms(self, since: float, until: float) -> list[float]:
        """How late each chunk was that the engine sent in this time: from its socket to ours, milliseconds.

        Raises:
            BenchmarkError: A stream broke off, or a chunk did not come.
        """
        self._check()
        lags = []
        records = {record.json["seed"]: record for record in self._engine.requests}
        for number, client in enumerate(self._clients):
            sent = records[number].sent
            if len(sent) - len(client.arrived) > 1:
                raise BenchmarkError(f"stream {number} lacks chunks")
            pairs = zip(sent, client.arrived, strict=False)  # the last one may be on its way
            lags += [(at - piece.at) * 1e3 for piece, at in pairs if since <= piece.at < until]
        return lags

    def stop(self) -> None:
        """Leave."""
        for transport in self._transports:
            transport.close()

    def _check(self, *, late: bool = False) -> None:
        for number, client in enumerate(self._clients):
            if client.ended or late or (client.head and not client.head.startswith(b"HTTP/1.1 200 ")):
                raise BenchmarkError(f"stream {number} has failed: {client.head[:1000]!r}")


def _request(number: int, key: str, pace_s: float) -> bytes:
    body = json.dumps(
        {
            "model": "base",
            "messages": [{"role": "user", "content": "Tell me a long story."}],
            "stream": True,
            "max_tokens": _TOKENS,
            "ignore_eos": True,
            "seed": number,
            "fake_fault": {"between_chunks_s": pace_s},
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
