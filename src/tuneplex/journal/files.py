"""Where journals lie: a directory for each process, and in it files named by the number of their first entry."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["LOCK", "first_of", "hold", "is_held", "segment", "segments", "size_of"]

LOCK = "lock"
_SUFFIX = ".journal"
_DIGITS = 16


def segment(directory: Path, first: int) -> Path:
    """The file that begins with this entry."""
    return directory / f"{first:0{_DIGITS}d}{_SUFFIX}"


def segments(directory: Path) -> list[Path]:
    """All files of a journal, oldest first."""
    return sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.stem.isdigit())


def first_of(path: Path) -> int:
    """The number of its first entry."""
    return int(path.stem)


def size_of(directory: Path) -> int:
    """Bytes of all files of a journal."""
    return sum(path.stat().st_size for path in segments(directory))


def hold(directory: Path) -> int:
    """Tell others that the process that writes here lives; the kernel takes it back when it ends. The descriptor."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_held(directory: Path) -> bool:
    """Whether the process that writes here lives."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False  # it has ended before it wrote anything, or is being made: then there is nothing to read either
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
