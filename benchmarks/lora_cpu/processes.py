"""Starts the engines and ends them again, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu import Cores, Meter, on_core
from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.client import Client
from benchmarks.lora_cpu.engines import EngineKind

__all__ = ["Installation", "RunningEngine", "running"]

_READY_S = 600.0  # three engines start at the same time, perhaps from a cold disk
_PAUSE_S = 0.5
_GRACE_S = 5.0
_LOG_TAIL = 4000
_OK = 200


@dataclass(frozen=True, slots=True)
class Installation:
    """What engines are started from.

    Attributes:
        python: The engine's Python.
        base: The base's directory.
        adapters: The directory of each adapter that is served.
        cores: Of the load and of the engines' workers; None where there is only one.
    """

    python: Path
    base: Path
    adapters: Mapping[str, Path]
    cores: Cores | None

    @property
    def worker_core(self) -> int:
        """The core that computes."""
        return min(os.sched_getaffinity(0)) if self.cores is None else self.cores.proxy


class RunningEngine:
    """An engine that has been started, under a keeper which ends all of it when we are gone.

    Args:
        kind: What it is.
        command: How it was started.
        keeper: The keeper's process.
        uds: Where it listens.
        log: What it writes.
    """

    def __init__(
        self, kind: EngineKind, command: list[str], keeper: subprocess.Popen[bytes], uds: Path, log: Path
    ) -> None:
        self.kind = kind
        self.command = command
        self.uds = uds
        self.meter = Meter(keeper.pid)
        self._keeper = keeper
        self._log = log

    async def ready(self) -> None:
        """Wait until it is healthy.

        Raises:
            BenchmarkError: It ended, or is not ready in time; the message holds the end of its log.
        """
        until = time.monotonic() + _READY_S
        while not await self._healthy():
            if time.monotonic() > until or self._keeper.poll() is not None:
                raise BenchmarkError(f"{self.kind.name} does not start:\n{self.log()[-_LOG_TAIL:]}")
            await asyncio.sleep(_PAUSE_S)

    async def page(self, path: str) -> tuple[int, bytes]:
        """The status and the body of one of its pages."""
        client = Client(self.uds)
        try:
            return await client.get(path)
        finally:
            await client.close()

    async def _healthy(self) -> bool:
        with contextlib.suppress(OSError, BenchmarkError):
            return (await self.page("/health"))[0] == _OK
        return False

    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def end(self) -> None:
        """Wait for the keeper, whose lifeline is closed, and kill what is left if it does not come to an end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(_GRACE_S + 5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()


@contextlib.contextmanager
def running(kinds: Sequence[EngineKind], installed: Installation) -> Iterator[list[RunningEngine]]:
    """Start the engines side by side, and end them all."""
    engines: list[RunningEngine] = []
    ours, theirs = os.pipe()
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as directory:
        try:
            for kind in kinds:
                engines.append(_start(kind, installed, Path(directory), ours))  # noqa: PERF401 - see `finally`
            yield engines
        finally:
            os.close(theirs)  # the other end of every keeper's lifeline
            for engine in engines:
                engine.end()
            os.close(ours)


def _start(kind: EngineKind, installed: Installation, directory: Path, lifeline: int) -> RunningEngine:
    uds, log = directory / f"{kind.name}.sock", directory / f"{kind.name}.log"
    command = kind.command(installed.python, installed.base, uds, installed.adapters)
    keeper = [sys.executable, "-m", "tuneplex.launchers.keeper", "--lifeline", str(lifeline)]
    keeper += ["--log", str(log), "--grace", str(_GRACE_S), "--", *command]
    with on_core(None if installed.cores is None else installed.cores.load):
        process = subprocess.Popen(
            keeper,
            env=kind.environment(installed.worker_core),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[lifeline],
            start_new_session=True,
            cwd=directory,
        )
    return RunningEngine(kind, command, process, uds, log)
