"""The files of the audit log: `000001.jsonl` and on; read line by line, written at the end and cut back on failure."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tuneplex.errors import AuditError
from tuneplex.files import sync_directory
from tuneplex.records.audit.chain import MOST_LINE, split
from tuneplex.records.audit.marks import Begin, mark

__all__ = ["SegmentFile", "beginning", "lines", "name_of", "number_of", "segments"]

_NAME = re.compile(r"([0-9]{6,9})\.jsonl")


def name_of(number: int) -> str:
    """The name of a segment's file."""
    return f"{number:06d}.jsonl"


def number_of(path: Path) -> int:
    """The number of a segment, by its name; 0 where the file is none."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def segments(directory: Path) -> list[Path]:
    """All segments that there are, oldest first."""
    try:
        return sorted((path for path in directory.iterdir() if number_of(path)), key=number_of)
    except FileNotFoundError:
        return []


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a segment with their newlines; the last one may lack it. What is too long for a line is cut.

    Raises:
        AuditError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            while raw := file.readline(MOST_LINE):
                yield raw if len(raw) < MOST_LINE or raw.endswith(b"\n") else raw + _skip(file.readline)
    except OSError as error:
        raise AuditError(f"{path} cannot be read: {error.strerror or error}") from error


def _skip(read: Callable[[int], bytes]) -> bytes:
    """Pass over the rest of a line; its newline, if it has one."""
    while piece := read(MOST_LINE):
        if piece.endswith(b"\n"):
            return b"\n"
    return b""


def beginning(path: Path) -> Begin | None:
    """What a segment's first line says, or None where it cannot be read."""
    line = split(next(lines(path), b""))
    return None if line is None else mark(line, Begin)


class SegmentFile:
    """The segment that is written.

    Args:
        path: Its file, which is there.
        size: How many of its bytes are good; what is behind them is cut off.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._broken = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if os.fstat(self._descriptor).st_size != size:
            self._cut()

    @classmethod
    def create(cls, path: Path, content: bytes) -> SegmentFile:
        """A new segment that begins so, for this user's eyes only; when that fails there is none.

        Raises:
            OSError: It cannot be written, or is there already.
        """
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.ExitStack() as undo:
            undo.callback(path.unlink)
            file = cls(path, 0)
            undo.callback(file.close)
            file.append(content)
            undo.pop_all()
        sync_directory(path.parent)
        return file

    def append(self, content: bytes) -> None:
        """Write at the end, and return when it is on the disk. When that fails the file is what it was.

        Raises:
            OSError: It failed. If the file could not be made what it was, it takes nothing more.
        """
        if self._broken:
            raise OSError(0, "it takes nothing more until it is opened again")
        try:
            self._write(content)
            os.fsync(self._descriptor)
        except BaseException:
            self._undo()
            raise
        self.size += len(content)

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _undo(self) -> None:
        self._broken = True
        with contextlib.suppress(OSError):
            self._cut()
            self._broken = False

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file, which takes nothing more."""
        self._broken = True
        os.close(self._descriptor)
