"""A log file that cannot fill the disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["LogFile", "open_log", "read_tail"]

_MIB = 1024 * 1024


class LogFile:
    """Bytes go to `path`; full files, and those of earlier starts, move on to `path.1`, `path.2` and so on.

    Args:
        path: The current file.
        limit: Its size, in bytes, above which it moves on.
        keep: How many old ones stay.
    """

    def __init__(self, path: Path, *, limit: int = 16 * _MIB, keep: int = 3) -> None:
        self._path = path
        self._limit = limit
        self._keep = keep
        self._size = 0
        self._descriptor = -1
        self._start()

    def write(self, data: bytes) -> None:
        """Append; a full disk loses the line, because an engine must not stop for its log."""
        if self._descriptor < 0 or self._size + len(data) > self._limit:
            self.close()
            self._start()
        with contextlib.suppress(OSError):
            self._size += os.write(self._descriptor, data)

    def close(self) -> None:
        """Give the file back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _start(self) -> None:
        """Begin a file; where there is no room even for that, the next line tries again."""
        self._size = 0
        with contextlib.suppress(OSError):
            _move_on(self._path, self._keep)
            self._descriptor = _open(self._path)


def open_log(path: Path, *, limit: int = 4 * _MIB, keep: int = 3) -> int:
    """A descriptor to append to `path`, which first moves on to `path.1` if it is larger than `limit` bytes.

    A process must not stay away for its log: where none can be written, what it says is lost.
    """
    try:
        if path.exists() and path.stat().st_size > limit:
            _move_on(path, keep)
        return _open(path)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def read_tail(path: Path, size: int = 16 * 1024, *, since: float = 0.0) -> str:
    """The last `size` bytes of a log as text, from the beginning of a line.

    Empty if there is no file, or none that was written to after `since` (Unix time): then it is an earlier start's.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime < since:
                return ""
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            data = file.read()
    except OSError:
        return ""
    if length > size:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _move_on(path: Path, keep: int) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    for number in range(keep - 1, 0, -1):
        older = _numbered(path, number)
        if older.exists():
            older.replace(_numbered(path, number + 1))
    path.replace(_numbered(path, 1))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
