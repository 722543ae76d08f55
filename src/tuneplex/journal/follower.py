"""Reads a journal while it is written, and what is left of it when its process has ended."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuneplex.journal.entries import Entry
from tuneplex.journal.files import first_of, is_held, segments
from tuneplex.journal.frames import DamagedError, read_frames

__all__ = ["Follower", "Numbered"]

_AT_ONCE = 1024 * 1024


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """An entry and its number in its journal, from 1."""

    number: int
    entry: Entry


class Follower:
    """Reads the journal in one directory, from its oldest file on.

    Args:
        directory: Where it lies.

    Attributes:
        name: Of the journal.
        ended: Its process has ended, and all of it has been read.
        finished: The files that have been read to their ends.
        damages: What could not be read, in words for people.
    """

    def __init__(self, directory: Path) -> None:
        self.name = directory.name
        self.ended = False
        self.damages: list[str] = []
        self._directory = directory
        self._path: Path | None = None
        self._offset = 0
        self._number = 0
        self._damaged = False  # the file that is read: nothing more of it can be
        self.finished: list[Path] = []

    def read(self) -> list[Numbered]:
        """The next entries, a megabyte at most; none if there is nothing new."""
        # Both before reading: what is written later is read the next time.
        alive, later = is_held(self._directory), self._next()
        while self._path is not None or later is not None:
            found = self._read() if self._path is not None else []
            if found:
                return found
            if later is None:
                break
            self._turn(later)
            later = self._next()
        self.ended = not alive
        return []

    def _next(self) -> Path | None:
        """The file behind the one that is read, if there is one."""
        later = [path for path in segments(self._directory) if self._path is None or path > self._path]
        return later[0] if later else None

    def _turn(self, path: Path) -> None:
        """Go on with the next file: nothing more comes in this one."""
        if self._path is not None:
            self._finish(self._path)
            missing = first_of(path) - self._number - 1
            if missing:
                self.damages.append(f"{self.name}: {missing} entries before {path.name} are missing")
        self._path, self._offset, self._number = path, 0, first_of(path) - 1
        self._damaged = False

    def _finish(self, path: Path) -> None:
        rest = path.stat().st_size - self._offset if path.exists() else 0
        if rest and not self._damaged:
            self._note_damage(path, self._offset, f"{rest} bytes at its end are no entry")
        self.finished.append(path)

    def _read(self) -> list[Numbered]:
        path = self._path
        if path is None or self._damaged:
            return []
        data = _part_of(path, self._offset)
        found: list[Numbered] = []
        end = 0
        try:
            for entry, behind in read_frames(data):
                self._number, end = self._number + 1, behind
                found.append(Numbered(self._number, entry))
        except DamagedError as error:
            self._note_damage(path, self._offset + error.offset, str(error))
            self._damaged = True
        self._offset += end
        return found

    def _note_damage(self, path: Path, offset: int, words: str) -> None:
        self.damages.append(f"{self.name}: {path.name} at byte {offset}: {words}; what follows in it is not read")


def _part_of(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_AT_ONCE)
    except FileNotFoundError:  # somebody has removed it
        return b""
