"""Processes that the supervisor starts again whenever they end: control and the gateways.

A successor of one is first started on trial, beside it: it says through a pipe how far it is, and nothing starts it
again while nobody has decided for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tuneplex.app.process_table import ProcessTable
from tuneplex.errors import EngineStartError
from tuneplex.launchers.logfile import open_log, read_tail
from tuneplex.log import get_logger

__all__ = ["Service"]

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 10.0
_STEADY_S = 30.0
_LAST_WORDS_S = 2.0
_TAIL = 2048


class Service:
    """One process that should always run.

    Args:
        name: For the log, and of its log file.
        command: Its command line.
        table: Where it is started.
        logs: The directory of its log file.
        descriptors: What it inherits beside the lifeline.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, table: ProcessTable, logs: Path, descriptors: Sequence[int] = ()
    ) -> None:
        self.name = name
        self._command = command
        self._table = table
        self._log = logs / f"{name}.log"
        self._descriptors = descriptors
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._began = 0.0
        self._delay_s = _FIRST_DELAY_S
        self._wanted = True
        self._ended = asyncio.Event()
        self._said: asyncio.StreamReader | None = None

    def start(self) -> None:
        """Start the process, unless it should not run any more."""
        if self._wanted:
            self._run(self._command, self._descriptors)

    async def try_start(self) -> None:
        """Start the process on trial: it is told by `--ready FD` where to say how far it is, see `hear`."""
        self._wanted = False
        reading, writing = os.pipe()
        try:
            self._run([*self._command, "--ready", str(writing)], [*self._descriptors, writing])
        finally:
            os.close(writing)
        self._said = asyncio.StreamReader()
        loop, protocol = asyncio.get_running_loop(), asyncio.StreamReaderProtocol(self._said)
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))

    async def hear(self, word: str, patience_s: float) -> None:
        """Wait until a process that is, or was, on trial says this.

        Raises:
            EngineStartError: It does not, and why.
        """
        try:
            async with asyncio.timeout(patience_s):
                heard = await self._said.readline() if self._said is not None else b""
        except TimeoutError:
            words = f"the new {self.name} was not {word} within {patience_s:.0f} s"
            raise EngineStartError(words, tail=self._tail()) from None
        if heard.decode().strip() != word:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self.gone()  # it may still have to say why
            raise EngineStartError(f"the new {self.name} ended before it was {word}", tail=self._tail())

    def _tail(self) -> str:
        return read_tail(self._log, _TAIL, since=self._began).strip()

    def keep(self) -> None:
        """The trial is over: from now on it should always run."""
        self._wanted = True
        if self._process is None:  # it has ended just now
            self.start()

    def retire(self) -> None:
        """Let the process finish what it has, and do not start it again."""
        self._wanted = False
        if self._process is not None:
            self._table.signal(self._process, signal.SIGUSR1)

    async def gone(self) -> None:
        """Return once the process has ended."""
        if self._process is not None:
            await self._ended.wait()

    def _run(self, command: Sequence[str], descriptors: Sequence[int]) -> None:
        self._started, self._began = time.monotonic(), time.time()
        self._ended.clear()
        output = open_log(self._log)
        try:
            self._process = self._table.start(command, on_end=self._on_end, output=output, descriptors=descriptors)
        finally:
            os.close(output)
        get_logger(__name__).info("runs", service=self.name, pid=self._process.pid)

    async def stop(self, patience_s: float) -> None:
        """SIGTERM, then SIGKILL after `patience_s`; returns when the process is gone and stays gone."""
        self._wanted = False
        if self._process is None:
            return
        self._table.signal(self._process, signal.SIGTERM)
        try:
            async with asyncio.timeout(patience_s):
                await self._ended.wait()
        except TimeoutError:
            get_logger(__name__).warning("did not end in time and is killed", service=self.name, patience_s=patience_s)
            if self._process is not None:
                self._table.signal(self._process, signal.SIGKILL)
            await self._ended.wait()

    def _on_end(self, code: int) -> None:
        self._process = None
        self._ended.set()
        if not self._wanted:
            return
        steady = time.monotonic() - self._started > _STEADY_S
        self._delay_s = _FIRST_DELAY_S if steady else self._delay_s
        get_logger(__name__).warning("ended and is started again", service=self.name, code=code, in_s=self._delay_s)
        asyncio.get_running_loop().call_later(self._delay_s, self.start)
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
