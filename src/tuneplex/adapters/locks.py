"""One process at a time, across processes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["exclusive", "free"]


@contextlib.contextmanager
def exclusive(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file; the system frees it when this process ends, however it ends.

    Args:
        lock: Made if it is not there, and left behind.
        on_wait: Called once if another process holds it.
    """
    with lock.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def free(lock: Path) -> Iterator[bool]:
    """Hold the lock file if nobody else does, and tell so."""
    with lock.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
