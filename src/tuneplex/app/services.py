"""Processes that the supervisor starts again whenever they end: control and the gateways."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tuneplex.app.process_table import ProcessTable
from tuneplex.launchers.logfile import open_log

__all__ = ["Service"]

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 10.0
_STEADY_S = 30.0


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
        self._started = 0.0
        self._delay_s = _FIRST_DELAY_S
        self._wanted = True
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Start the process, unless it should not run any more."""
        if not self._wanted:
            return
        self._started = time.monotonic()
        self._ended.clear()
        output = open_log(self._log)
        try:
            self._process = self._table.start(
                self._command, on_end=self._on_end, output=output, descriptors=self._descriptors
            )
        finally:
            os.close(output)
        logging.getLogger(__name__).info("%s runs as process %d", self.name, self._process.pid)

    async def stop(self, patience_s: float) -> None:
        """SIGTERM, then SIGKILL after `patience_s`; returns when the process is gone and stays gone."""
        self._wanted = False
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience_s):
                await self._ended.wait()
        except TimeoutError:
            logging.getLogger(__name__).warning("%s did not end within %.0f s and is killed", self.name, patience_s)
            if self._process is not None:
                self._process.kill()
            await self._ended.wait()

    def _on_end(self, code: int) -> None:
        self._process = None
        self._ended.set()
        if not self._wanted:
            return
        steady = time.monotonic() - self._started > _STEADY_S
        self._delay_s = _FIRST_DELAY_S if steady else self._delay_s
        logging.getLogger(__name__).warning("%s ended with code %d, again in %.1f s", self.name, code, self._delay_s)
        asyncio.get_running_loop().call_later(self._delay_s, self.start)
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
