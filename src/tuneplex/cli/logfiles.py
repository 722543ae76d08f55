"""Reads log files from their end, and goes on while they grow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["Follower", "follow", "tail"]

_BLOCK = 64 * 1024
_KEPT = 4  # files of one log: the current one and three older ones


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log, however large it is; none when it is not there.

    A process that starts again begins a new file and keeps the old one as `path.1`: the lines before come from there.
    """
    found: list[str] = []
    for older in range(_KEPT):
        file = path.with_name(f"{path.name}.{older}") if older else path
        found = [*_tail_of_file(file, lines - len(found)), *found]
        if len(found) >= lines:
            break
    return found


def _tail_of_file(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            data = _last_blocks(file, lines)
    except FileNotFoundError:
        return []
    return [line.decode(errors="replace") for line in data.splitlines()[-lines:]] if lines else []


def _last_blocks(file: BinaryIO, lines: int) -> bytes:
    end = file.seek(0, os.SEEK_END)
    data = b""
    while end and data.count(b"\n") <= lines:
        size = min(_BLOCK, end)
        end = file.seek(end - size)
        data = file.read(size) + data
    return data


class Follower:
    """What is added to a log file from now on, whole lines only.

    A file that becomes shorter or is replaced (a process that started again) is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._inode, self._at = self._stat()

    def _stat(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return stat.st_ino, stat.st_size

    def lines(self) -> Iterator[str]:
        """Lines that were finished since the last call."""
        inode, size = self._stat()
        if inode != self._inode or size < self._at:
            self._inode, self._at, self._rest = inode, 0, b""
        if size == self._at:
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = self._rest + file.read(size - self._at)
        self._at = size
        *whole, self._rest = data.split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)


def follow(paths: dict[str, Path], show: Callable[[str, str], None]) -> Callable[[], None]:
    """A function that shows, each time it is called, the new lines of all files with the name of their process."""
    followers = {name: Follower(path) for name, path in paths.items()}

    def look() -> None:
        for name, follower in followers.items():
            for line in follower.lines():
                show(name, line)

    return look
