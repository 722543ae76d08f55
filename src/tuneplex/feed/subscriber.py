"""A gateway's end of the feed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from tuneplex.feed.frames import FrameError, greeting, pack, read_frame, read_hello
from tuneplex.identity import Access
from tuneplex.log import get_logger
from tuneplex.types import FleetView, GatewayReport, Leases, Turns

__all__ = ["Subscriber"]

_Value = FleetView | Access | Leases | Turns

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0


class Subscriber:
    """Takes in what control publishes, sends reports. While it is away, the gateway works on with the last of each.

    Args:
        path: Control's socket.
        on_view: Called with every view.
        on_access: Called with everything there is to know of keys, whenever it changed.
        on_leases: Called with the shares of limits, whenever they changed.
        on_turns: Called with how the gateways share the replicas, whenever that changed.
        on_lost: Called whenever control was there and is away now.
        report: Asked for what to send, every `interval_s`.
        interval_s: Seconds between reports.

    Attributes:
        connected: Set while control is there.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_view: Callable[[FleetView], None],
        on_access: Callable[[Access], None],
        on_leases: Callable[[Leases], None] = lambda _leases: None,
        on_turns: Callable[[Turns], None] = lambda _turns: None,
        on_lost: Callable[[], None] = lambda: None,
        report: Callable[[], GatewayReport],
        interval_s: float = 1.0,
    ) -> None:
        self._path = path
        self._on_view = on_view
        self._on_access = on_access
        self._on_leases = on_leases
        self._on_turns = on_turns
        self._on_lost = on_lost
        self._report = report
        self._interval_s = interval_s
        self._hurry = asyncio.Event()
        self.connected = asyncio.Event()

    def hurry(self) -> None:
        """Send the next report at once: something has changed that others wait for."""
        self._hurry.set()

    async def run(self) -> None:
        """Stay connected until cancelled; the last thing sent is a report."""
        delay = _FIRST_DELAY_S
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY_S)
                continue
            understood = await self._converse(reader, writer)
            self._on_lost()
            # Who does not speak as we do, as a control of another version, will not be understood any better at once.
            delay = _FIRST_DELAY_S if understood else _LONGEST_DELAY_S
            await asyncio.sleep(delay)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take values in until the other side is gone; whether all of them were understood."""
        writer.write(greeting())
        reporting = asyncio.create_task(self._send_reports(writer))
        try:
            if await read_hello(reader):
                self.connected.set()
                await self._take_values(reader)
        except FrameError as error:
            get_logger(__name__).warning("control is not understood", error=error)
            return False
        else:
            return True
        finally:
            self.connected.clear()
            reporting.cancel()
            if not writer.is_closing():  # uvloop refuses to write where the other side has gone
                writer.write(pack(self._report()))
                writer.close()

    async def _take_values(self, reader: asyncio.StreamReader) -> None:
        decoder: msgspec.msgpack.Decoder[_Value] = msgspec.msgpack.Decoder(_Value)
        while (value := await read_frame(reader, decoder)) is not None:
            match value:
                case FleetView():
                    self._on_view(value)
                case Access():
                    self._on_access(value)
                case Leases():
                    self._on_leases(value)
                case Turns():
                    self._on_turns(value)

    async def _send_reports(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(pack(self._report()))
                await writer.drain()
                self._hurry.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._hurry.wait()
