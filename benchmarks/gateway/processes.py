"""Starts the proxies and ends them again, whatever happens."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from benchmarks.cpu import Meter, on_core
from benchmarks.errors import BenchmarkError
from benchmarks.gateway.load import Kind, Load
from benchmarks.gateway.targets import Target
from benchmarks.processes import end, free_ports, start, tail

__all__ = ["Proxy", "running"]

_READY_S = 40.0
_ATTEMPT_S = 5.0
_PAUSE_S = 0.2
_PROBE = Kind("probe", stream=False, connections=1)


class Proxy:
    """A target that runs, or the upstream itself for the target without a proxy.

    Args:
        target: What it is.
        port: Where it listens.
        command: How it was started.
        process: Its first process.
        log: What it writes.
    """

    def __init__(
        self,
        target: Target,
        port: int,
        command: list[str] | None = None,
        process: subprocess.Popen[bytes] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        self.target = target
        self.port = port
        self.command = command or []
        self._process = process
        self._log = log
        self._meter = None if process is None else Meter(process.pid)

    async def ready(self, load: Load) -> None:
        """Wait until it answers a request as it must.

        Raises:
            BenchmarkError: It ended, or did not answer in time; the message holds the end of its log.
        """
        until = time.monotonic() + _READY_S
        while True:
            try:
                async with load.clients(_PROBE, self.target.names, self.port):
                    await load.drive(1, 0.0, stuck_s=_ATTEMPT_S)
            except (OSError, BenchmarkError) as error:
                if time.monotonic() > until or not self._alive:
                    raise BenchmarkError(f"{self.target.name} does not answer: {error}\n{self.log_tail()}") from error
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def pids(self) -> tuple[int, ...]:
        """Its processes."""
        return () if self._meter is None else self._meter.pids()

    def cpu_ns(self) -> int:
        """CPU time that its processes have used so far; 0 for no proxy."""
        return 0 if self._meter is None else self._meter.read_ns()

    def memory_mb(self) -> float:
        """Its resident memory, MB."""
        return 0.0 if self._meter is None else self._meter.memory_mb()

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return "" if self._log is None else tail(self._log)

    @property
    def _alive(self) -> bool:
        return self._process is None or self._process.poll() is None


@contextmanager
def running(target: Target, load: Load, cores: tuple[int, ...]) -> Iterator[Proxy]:
    """Start a target and end it again.

    Args:
        target: What to start.
        load: The engine, which listens.
        cores: It is pinned to these, from its first instruction on; none for no pinning.
    """
    if target.command is None:
        yield Proxy(target, load.port)
        return
    port, spare = free_ports(2)
    upstream = f"unix:{load.path}" if target.unix else f"http://127.0.0.1:{load.port}"
    command = target.command(port, upstream, spare)
    with tempfile.TemporaryFile() as log:
        with on_core(*cores):
            process = start(command, log)
        try:
            yield Proxy(target, port, command, process, log)
        finally:
            end(process)
