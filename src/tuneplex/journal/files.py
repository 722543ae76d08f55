"""Where journals lie: a directory for each process, and in it files named by the number of their first entry."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

__all__ = ["LOCK", "first_of", "hold", "is_held", "segment", "segments", "size_of"]

LOCK = "lock"
_SUFFIX = ".journal"
_DIGITS = 16
_PATIENCE_S = 1.0
_PAUSE_S = 0.002


def segment(directory: Path, first: int) -> Path:
    """The file that begins with this entry."""
    return directory / f"{first:0{_DIGITS}d}{_SUFFIX}"


def segments(directory: Path) -> list[Path]:
    """All files of a journal, oldest first."""
    return sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.stem.isascii() and path.stem.isdigit())


def first_of(path: Path) -> int:
    """The number of its first entry."""
    return int(path.stem)


def size_of(directory: Path) -> int:
    """Bytes of all files of a journal."""
    return sum(map(_size, segments(directory)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # somebody has just read it to its end
        return 0


def hold(directory: Path) -> int:
    """Tell others that the process that writes here lives; the kernel takes it back when it ends. The descriptor."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody looks just now whether it is held
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise
            time.sleep(_PAUSE_S)
        else:
            return descriptor


def is_held(directory: Path) -> bool:
    """Whether the process that writes here lives; it may, where the lock is missing."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
