"""A gateway process as in a fleet, without the rest of one: told of everything over the feed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.processes import end, start
from tuneplex.feed import Publisher
from tuneplex.identity import Access
from tuneplex.types import FleetView, Leases

__all__ = ["FleetGateway", "fleet_gateway"]


class FleetGateway:
    """One that runs.

    Attributes:
        pid: Of its process.
    """

    def __init__(self, pid: int, publisher: Publisher) -> None:
        self.pid = pid
        self._publisher = publisher

    async def tell(self, view: FleetView) -> None:
        """From now on the fleet is this one."""
        await self._publisher.publish(view)


@contextlib.asynccontextmanager
async def fleet_gateway(port: int, view: FleetView, access: Access) -> AsyncIterator[FleetGateway]:
    """Run `tuneplex.app.gateway_process` on a port."""
    publisher = Publisher()
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as name:
        directory = Path(name)
        (directory / "run").symlink_to(directory)
        async with publisher.listening(directory / "feed.sock"):
            for value in (view, access, Leases()):
                await publisher.publish(value)
            theirs, ours = os.pipe()
            with os.fdopen(ours), (directory / "gateway.log").open("wb") as log:  # it ends when `ours` is closed
                with os.fdopen(theirs) as lifeline, socket.create_server(("127.0.0.1", port)) as listener:
                    handed = (lifeline.fileno(), listener.fileno())
                    process = start(_command(directory, *handed), log, handed)
                try:
                    yield FleetGateway(process.pid, publisher)
                finally:
                    await asyncio.to_thread(end, process)


def _command(directory: Path, lifeline: int, listener: int) -> list[str]:
    command = [sys.executable, "-m", "tuneplex.app.gateway_process", "--state-dir", str(directory), "--index", "0"]
    command += ["--name", "gateway-0"]
    return [*command, "--lifeline", str(lifeline), "--listener", str(listener)]
