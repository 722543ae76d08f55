"""Clients and engines that all misbehave at the same time, over real sockets, and a gateway that forgets them all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl

import h11
import psutil
import pytest

from tests.support.front import VERSIONS, Front, open_front, view_of
from tests.support.written import Written
from tuneplex.gateway import ConnectionLimits
from tuneplex.testing import FakeEngine
from tuneplex.types import GatewaySettings, Timeouts

LIMITS = ConnectionLimits(head_s=1, body_s=1, idle_s=1, stalled_s=1, linger_s=0.2)
SETTINGS = GatewaySettings(timeouts=Timeouts(first_byte_s=2, between_chunks_s=1))
FAULTS = [
    "{}", "{}", "{}", '{"cut":7}',
    '{"reset_before_headers":true}', '{"reset_after_chunks":1}', '{"close_after_chunks":1}',
    '{"drop_done":true}', '{"error_after_chunks":1}', '{"status":500}', '{"status":429}', '{"status":418,"body":"{"}',
    '{"raw":"HTTP/1.1 200 OK\\r\\n\\r\\n"}', '{"raw":"nonsense"}', '{"before_headers_s":0.05}', '{"flood":300000}',
    '{"content_type":"text/html","body":"x"}', '{"between_chunks_s":0.005}', '{"silent_after_chunks":1}',
]  # fmt: skip
PATIENCE_S = 60


class Client:
    """One client with a mind of its own; the same for the same number."""

    def __init__(self, number: int, front: Front, tls: ssl.SSLContext | None = None) -> None:
        self._random = random.Random(number)  # noqa: S311 - it only has to differ
        self._port = front.port
        self._tls = tls
        self.replies = 0

    async def run(self) -> None:
        """Say something, and leave somehow."""
        try:
            reader, writer = await asyncio.open_connection(
                "localhost", self._port, ssl=self._tls, family=socket.AF_INET
            )
        except OSError:
            return  # it is about to stop
        try:
            with contextlib.suppress(ConnectionError):
                await self._talk(reader, writer)
        finally:
            if self._random.random() < 0.3:
                writer.transport.abort()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        choice = self._random
        data = b"".join(self._request() for _ in range(choice.choice([1, 1, 1, 2, 3])))
        if choice.random() < 0.25:
            data = data[: choice.randrange(len(data))]
        if choice.random() < 0.25:
            at = choice.randrange(len(data) + 1)
            data = data[:at] + choice.randbytes(3) + data[at + choice.randrange(4) :]
        while data:
            size = choice.choice([1, 10, 100, 10_000, 10_000])
            writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        how = choice.choice(["read", "read", "read", "some", "leave", "half"])
        if how == "half" and writer.can_write_eof():
            writer.write_eof()
        if how == "some":
            await reader.read(choice.randrange(1, 2000))
        elif how != "leave":
            await self.read(reader)

    def _request(self) -> bytes:
        choice = self._random
        if choice.random() < 0.2:
            return (
                choice.choice([b"GET /health", b"HEAD /v1/models", b"GET /nowhere"]) + b" HTTP/1.1\r\nhost: x\r\n\r\n"
            )
        stream = choice.choice([b"true", b"false"])
        body = b'{"model":"contacts","messages":[{"role":"user","content":"hi"}],"max_tokens":8,"stream":%b,' % stream
        body += b'"fake_fault":%b}' % choice.choice(FAULTS).encode()
        path = b"/v1/chat/completions HTTP/1.%d" % choice.choice([1, 1, 1, 0])
        head = b"POST %b\r\nhost: x\r\n" % path
        if choice.random() < 0.3:
            cut = choice.randrange(1, len(body))
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]))
            return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        return head + b"content-length: %d\r\n\r\n" % len(body) + body

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read what comes; all of it is HTTP, up to where it is cut."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(4096)
                if not data:
                    return
                parser.receive_data(data)
            elif isinstance(event, h11.EndOfMessage):
                self.replies += 1
                return


def connections(port: int) -> int:
    """Connections of this process to that port of its own, both ends."""
    own = psutil.Process(os.getpid()).net_connections("tcp")
    ends = [{getattr(end, "port", 0) for end in (one.laddr, one.raddr)} for one in own if one.status != "LISTEN"]
    return sum(port in pair for pair in ends)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged that should not have been, exceptions that nobody caught among it."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def calm(front: Front) -> None:
    """Wait until nobody is connected and nothing is under way."""
    while front.gateway.ledger.relays or connections(front.port):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_a_storm_leaves_nothing_behind(
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    certificate: tuple[str, str],
    written: Written,
    *,
    secure: bool,
) -> None:
    """Hundreds at once, cut and left early on both sides: no failure of ours, no connection and no request is left.

    The journal knows the end of each.
    """
    cert, key = certificate if secure else (None, None)
    tls = ssl.create_default_context(cafile=cert) if secure else None
    caplog.set_level(logging.WARNING)
    view, journal = view_of([engine], SETTINGS), written.journal
    async with open_front(view, limits=LIMITS, tls_cert=cert, tls_key=key, journal=journal) as front:
        clients = [Client(number, front, tls) for number in range(300)]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(client.run() for client in clients))
            await calm(front)
        assert not front.gateway.ledger.outstanding
        assert sum(client.replies for client in clients) > 50
        assert len(front.outcomes()) > 3
        written.agrees_with(front)
        last = Client(0, front, tls)
        reader, writer = await asyncio.open_connection("localhost", front.port, ssl=tls, family=socket.AF_INET)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await last.read(reader)
        writer.close()
        assert last.replies == 1
    assert not failures(caplog)


async def test_a_fleet_may_change_in_a_storm(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, written: Written
) -> None:
    """Engines come and go in the view and settings change, while requests are under way: each still has its one end."""
    caplog.set_level(logging.WARNING)
    async with (
        FakeEngine("base", adapters=VERSIONS.values()) as second,
        open_front(view_of([engine], SETTINGS), limits=LIMITS, journal=written.journal) as front,
    ):
        views = [view_of(engines, SETTINGS) for engines in ([], [second], [engine, second], [engine])]

        async def change() -> None:
            for number in range(10_000):
                front.gateway.update(views[number % len(views)])
                await asyncio.sleep(0.002)

        changing = asyncio.create_task(change())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(Client(1000 + number, front).run() for number in range(300)))
            changing.cancel()
            await calm(front)
        assert not front.gateway.ledger.outstanding
        written.agrees_with(front)
    assert not failures(caplog)


async def test_a_gateway_may_stop_in_a_storm(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, written: Written
) -> None:
    """It ends within its time, whatever its clients do, and says nothing of it."""
    caplog.set_level(logging.WARNING)
    async with asyncio.timeout(PATIENCE_S):
        async with open_front(view_of([engine], SETTINGS), limits=LIMITS, drain_s=20, journal=written.journal) as front:
            clients = [asyncio.create_task(Client(2000 + number, front).run()) for number in range(300)]
            await engine.arrived(50)
            front.stop.set()
        await asyncio.gather(*clients)
    assert not front.gateway.ledger.relays
    written.agrees_with(front)
    assert not failures(caplog)
