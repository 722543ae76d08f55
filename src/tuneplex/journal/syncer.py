"""Brings what was written to the disk: one thread, one call for many writes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Syncer", "sync_names"]


class Syncer:
    """Syncs one file after the other.

    Args:
        directory: Where the files lie.
        pause_s: Between two calls, so that many writes share one; who waits for the disk is not made to wait for it.

    Attributes:
        durable: The number of the last entry that is on the disk.
        doubtful: The number of the last entry of which nobody knows: the disk has refused once, and what it says of
            the same file later means nothing.
        refused: The disk has refused, and the entries still go to that file.
        failures: How often the disk has refused; what was written then may be lost when the power fails.
        slowest_s: The longest call.
    """

    def __init__(self, directory: Path, pause_s: float) -> None:
        self._directory = directory
        self._pause_s = pause_s
        self._file = -1
        self._written = self.durable = self.doubtful = 0
        self._named = False
        self.refused = False
        self._retired: list[int] = []
        self._idle = True
        self._work, self._hurry = threading.Event(), threading.Event()
        self._closing = False
        self._notify: Callable[[], object] | None = None
        self.failures = 0
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def use(self, file: int) -> None:
        """From now on entries go to this file; the one before is closed when it is on the disk."""
        before, self._file = self._file, file
        self._named = self.refused = False
        if before >= 0:
            self._retired.append(before)

    def wrote(self, number: int) -> None:
        """All entries up to this one were written."""
        self._written = number
        if self._idle:
            self._idle = False
            self._work.set()

    def hurry(self, notify: Callable[[], object]) -> None:
        """Somebody waits for the disk: call `notify`, in the syncing thread, when what was written is there."""
        self._notify = notify
        self._hurry.set()
        self._work.set()

    def close(self) -> None:
        """Bring everything to the disk and end."""
        self._closing = True
        self._hurry.set()
        self._work.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._work.wait()
            self._sync()
            self._hurry.wait(self._pause_s)
            self._hurry.clear()
        self._sync()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _sync(self) -> None:
        # In this order: what is written after `_idle` is set asks for another call.
        self._work.clear()
        self._idle = True
        notify, self._notify = self._notify, None
        written, file = self._written, self._file
        began = time.monotonic()
        try:
            self._sync_files(file)
        except OSError:
            self.failures += 1
            self.doubtful = written
            self.refused = True
        else:
            self.durable = written
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if notify is not None:
            notify()

    def _sync_files(self, file: int) -> None:
        while self._retired:
            before = self._retired.pop(0)
            try:
                os.fdatasync(before)
            finally:
                os.close(before)
        if not self._named:
            self._named = True
            sync_names(self._directory)
        os.fdatasync(file)


def sync_names(directory: Path) -> None:
    """Bring to the disk which files there are."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
