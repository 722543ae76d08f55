"""The supervisor's keepers: started, stopped and forgotten as control wishes, remembered while control is away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from tuneplex.app.process_table import ProcessTable
from tuneplex.launchers.spawner import Child, Forget, Spawn, Stop
from tuneplex.log import get_logger

__all__ = ["Keepers"]


class Keepers:
    """All keepers by key, the ended ones too until control forgets them.

    Args:
        table: Where they are started.

    Attributes:
        on_change: Called after every change of `children`.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self.on_change: Callable[[], None] = _nobody
        self._children: dict[str, Child] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._none_lives = asyncio.Event()
        self._none_lives.set()

    @property
    def children(self) -> tuple[Child, ...]:
        """As control sees them."""
        return tuple(self._children.values())

    def grant(self, wish: Spawn | Stop | Forget) -> str:
        """Do what control asks; returns why not, or an empty string."""
        match wish:
            case Spawn():
                return self._spawn(wish)
            case Stop(key):
                return self._stop(key)
            case Forget(key):
                return self._forget(key)

    async def stop_all(self) -> None:
        """End all engines, gracefully and then for sure; each keeper sees to its own."""
        for process in self._processes.values():
            self._table.signal(process, signal.SIGTERM)
        await self._none_lives.wait()

    def _spawn(self, wish: Spawn) -> str:
        if wish.key in self._processes:
            return f"{wish.key} runs already"
        try:
            process = self._start(wish)
        except OSError as error:
            return f"cannot start a keeper: {error}"
        self._processes[wish.key] = process
        self._none_lives.clear()
        self._children[wish.key] = Child(wish.key, wish.meta, time.time(), process.pid)
        self._hear_engine(wish.key, process)
        self.on_change()
        return ""

    def _start(self, wish: Spawn) -> subprocess.Popen[bytes]:
        # -I: the engine's PYTHON* variables are for the engine's interpreter, not for this one.
        keeper = [sys.executable, "-I", "-m", "tuneplex.launchers.keeper", "--lifeline", str(self._table.lifeline)]
        options = ["--log", wish.log, "--grace", str(wish.grace_s), "--"]
        return self._table.start(
            [*keeper, *options, *wish.command],
            on_end=lambda code: self._on_end(wish.key, code),
            output=subprocess.PIPE,
            errors=2,
            env=wish.env,
        )

    def _stop(self, key: str) -> str:
        process = self._processes.get(key)
        if process is None:
            return "" if key in self._children else f"there is no {key}"
        self._table.signal(process, signal.SIGTERM)
        return ""

    def _forget(self, key: str) -> str:
        if key in self._processes:
            return f"{key} still runs"
        if self._children.pop(key, None) is not None:
            self.on_change()
        return ""

    def _hear_engine(self, key: str, process: subprocess.Popen[bytes]) -> None:
        """Wait for the one line a keeper says: the engine's process number."""
        if process.stdout is None:
            return
        descriptor = process.stdout.fileno()
        loop = asyncio.get_running_loop()

        def heard() -> None:
            loop.remove_reader(descriptor)
            line = os.read(descriptor, 64)
            if line.strip().isdigit():
                self._update(key, engine=int(line))

        loop.add_reader(descriptor, heard)

    def _on_end(self, key: str, code: int) -> None:
        process = self._processes.pop(key)
        if process.stdout is not None:
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            process.stdout.close()
        get_logger(__name__).info("a keeper ended", replica=key, code=code)
        self._update(key, ended=time.time(), exit_code=code)
        if not self._processes:
            self._none_lives.set()

    def _update(self, key: str, **fields: float) -> None:
        self._children[key] = msgspec.structs.replace(self._children[key], **fields)
        self.on_change()


def _nobody() -> None:
    """What is told of a change as long as nobody listens."""
