"""The processes of the benchmark: a gateway as in a fleet, and the crowd that sends it large prompts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TextIO

import msgspec

from benchmarks.errors import BenchmarkError
from benchmarks.large_bodies.crowd import Done, Order
from tuneplex.feed import Publisher
from tuneplex.identity import Access
from tuneplex.types import FleetView, Leases

__all__ = ["Crowd", "crowd", "gateway"]

_CROWD = Path(__file__).with_name("crowd.py")
_GRACE_S = 5.0


@contextlib.asynccontextmanager
async def gateway(directory: Path, port: int, view: FleetView, access: Access) -> AsyncIterator[int]:
    """Run `tuneplex.app.gateway_process` on a port, told of the fleet over the feed; yields its pid."""
    (directory / "run").symlink_to(directory)
    publisher = Publisher()
    async with publisher.listening(directory / "feed.sock"):
        for value in (view, access, Leases()):
            await publisher.publish(value)
        theirs, ours = os.pipe()
        with os.fdopen(ours), (directory / "gateway.log").open("w") as log:  # the gateway ends when `ours` is closed
            with os.fdopen(theirs) as lifeline, socket.create_server(("127.0.0.1", port)) as listener:
                process = _start(directory, lifeline.fileno(), listener.fileno(), log)
            try:
                yield process.pid
            finally:
                await _end(process)


def _start(directory: Path, lifeline: int, listener: int, log: TextIO) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tuneplex.app.gateway_process", "--state-dir", str(directory), "--index", "0"]
    command += ["--name", "gateway-0"]
    command += ["--lifeline", str(lifeline), "--listener", str(listener)]
    return subprocess.Popen(command, pass_fds=(lifeline, listener), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class Crowd:
    """The clients with the large prompts; `pid` is their process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process

    async def go(self) -> None:
        """Begin to send."""
        await self._say(b"go\n")

    async def stop(self) -> Done:
        """Send no more, and wait for the last replies.

        Raises:
            BenchmarkError: A reply was not as it must be.
        """
        await self._say(b"stop\n")
        done = msgspec.json.decode(await self.line(), type=Done)
        if done.wrong:
            raise BenchmarkError(f"a large prompt got a wrong reply: {done.wrong}")
        return done

    async def line(self) -> bytes:
        """What it says next."""
        stdout = self._process.stdout
        line = await stdout.readline() if stdout is not None else b""
        if not line:
            raise BenchmarkError("the process that sends large prompts has ended")
        return line

    async def _say(self, command: bytes) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(command)
            await stdin.drain()


@contextlib.asynccontextmanager
async def crowd(order: Order) -> AsyncIterator[Crowd]:
    """Start the crowd's process; its engine answers, and its clients wait for `go`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_CROWD),
        msgspec.json.encode(order).decode(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    started = Crowd(process)
    try:
        await started.line()
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, _GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
