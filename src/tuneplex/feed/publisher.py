"""Control's end of the feed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from tuneplex.feed.frames import FrameError, greeting, pack, read_frame, read_hello
from tuneplex.feed.sockets import private_socket
from tuneplex.identity import Access
from tuneplex.log import get_logger
from tuneplex.types import FleetView, GatewayReport, Leases, Turns

__all__ = ["Publisher"]


class Publisher:
    """Sends the latest value of each kind to every gateway, and holds the latest report of each.

    A gateway that reads slowly gets the values it missed replaced by the latest ones, not queued. Until the first
    `publish` of a kind nothing of that kind is sent: a control that has just started knows less than the gateways do.

    Args:
        on_report: Called with every report.
        on_gone: Called with the last report of a gateway whose connection has ended.
    """

    def __init__(
        self,
        on_report: Callable[[GatewayReport], None] = lambda _report: None,
        on_gone: Callable[[GatewayReport], None] = lambda _report: None,
    ) -> None:
        self._on_report = on_report
        self._on_gone = on_gone
        self._frames: dict[type, tuple[int, bytes]] = {}
        self._published = asyncio.Condition()
        self._version = 0
        self._reports: dict[asyncio.StreamWriter, GatewayReport | None] = {}

    @property
    def reports(self) -> tuple[GatewayReport, ...]:
        """The latest report of every gateway that is connected and has reported."""
        return tuple(report for report in self._reports.values() if report is not None)

    @property
    def connected(self) -> int:
        """How many gateways are connected, whether they have reported or not."""
        return len(self._reports)

    async def publish(self, value: FleetView | Access | Leases | Turns) -> None:
        """Make this what gateways should have, instead of the last of its kind; does not wait until they have it."""
        async with self._published:
            self._version += 1
            self._frames.pop(type(value), None)  # so that the values stand in the order in which they were published
            self._frames[type(value)] = (self._version, pack(value))
            self._published.notify_all()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve gateways on this socket for as long as the block runs."""
        server = await asyncio.start_unix_server(self._serve, sock=private_socket(path))
        try:
            yield
        finally:
            server.close()
            for writer in list(self._reports):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reports[writer] = None
        writer.write(greeting())
        sending = asyncio.create_task(self._send(writer))
        try:
            await self._listen(reader, writer)
        except FrameError as error:
            get_logger(__name__).warning("a gateway was cut off", error=error)
        finally:
            sending.cancel()
            last = self._reports.pop(writer)
            writer.close()
            if last is not None:
                self._on_gone(last)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = msgspec.msgpack.Decoder(GatewayReport)
        if not await read_hello(reader):
            return
        while (report := await read_frame(reader, decoder)) is not None:
            self._reports[writer] = report
            self._on_report(report)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while True:
                async with self._published:
                    await self._published.wait_for(lambda seen=sent: self._version > seen)  # type: ignore[misc]
                    news = [frame for version, frame in self._frames.values() if version > sent]
                    sent = self._version
                if writer.is_closing():
                    return
                writer.writelines(news)
                await writer.drain()
