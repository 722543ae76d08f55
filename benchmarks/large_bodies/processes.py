"""The crowd that sends large prompts, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from benchmarks.errors import BenchmarkError
from benchmarks.large_bodies.crowd import Done, Order

__all__ = ["Crowd", "crowd"]

_CROWD = Path(__file__).with_name("crowd.py")


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
