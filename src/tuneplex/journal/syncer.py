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
        pause_s: Between two calls, so that many writes share one; who waits for the disk is not made to wait for it.

    Attributes:
        durable: The number of the last entry that is on the disk.
        doubtful: The number of the last entry of which nobody knows: the disk has refused once, and what it says of
            the same file later means nothing.
        refused: The disk has refused, and the entries still go to that file.
        failures: How often the disk has refused; what was written then may be lost when the power fails.
        slowest_s: The longest call.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._directory: Path | None = None  # whose names are to be synced
        self._file = -1
        self._written = self.durable = self.doubtful = 0
        self._retired: list[int] = []
        self._turn = threading.Lock()  # of file and `_retired`: they change together
        self.refused = False
        self._idle = True
        self._work, self._hurry = threading.Event(), threading.Event()
        self._closing = False
        self._notify: Callable[[], object] | None = None
        self.failures = 0
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def use(self, file: int, directory: Path) -> None:
        """From now on entries go to this file, which is new there; the one before is closed when it is on the disk."""
        with self._turn:
            if self.refused:
                self.doubtful = self._written
            if self._file >= 0:
                self._retired.append(self._file)
            self._file, self._directory = file, directory
            self.refused = False

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
        with self._turn:
            written, file, refused = self._written, self._file, self.refused
            retired, self._retired = self._retired, []
            directory, self._directory = self._directory, None
        began = time.monotonic()
        try:
            _bring(retired, directory, file)
        except OSError:
            self._fail(file, written)
        else:
            if refused:
                self.doubtful = written
            else:
                self.durable = written
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if notify is not None:
            notify()

    def _fail(self, file: int, written: int) -> None:
        with self._turn:
            self.failures += 1
            self.doubtful = written
            self.refused = self.refused or self._file == file


def _bring(retired: list[int], directory: Path | None, file: int) -> None:
    """Bring these to the disk, whatever becomes of one of them; those that are retired are closed."""
    with contextlib.ExitStack() as stack:
        if file >= 0:
            stack.callback(os.fdatasync, file)
        if directory is not None:
            stack.callback(sync_names, directory)
        for before in retired:
            stack.callback(os.close, before)
            stack.callback(os.fdatasync, before)


def sync_names(directory: Path) -> None:
    """Bring to the disk which files there are."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
