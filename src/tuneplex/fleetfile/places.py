"""Where each key of a fleet file stands, and errors that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuneplex.errors import FleetFileError

__all__ = ["KeyPath", "Places", "error_at", "key_text"]

KeyPath = tuple[str | int, ...]


def key_text(path: KeyPath) -> str:
    """Write a key path as people read it: `pools.big.urls[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def error_at(file: str, line: int, path: KeyPath, message: str, hint: str = "") -> FleetFileError:
    """An error about the value at `path`, on one line whatever the file's texts contain: `FILE:LINE: KEY: message`."""
    text = f"{key_text(path)}: {message}" if path else message
    return FleetFileError(f"{file}:{line}: {_printable(text)}", hint=_printable(hint))


class Places:
    """The line of every key in one file.

    Args:
        file: The file's name for messages.
        lines: Key path -> line, counted from 1.
    """

    def __init__(self, file: str, lines: Mapping[KeyPath, int]) -> None:
        self.file = file
        self._lines = dict(lines)

    def line(self, path: KeyPath) -> int | None:
        """The line on which exactly this key stands, or None when the file does not have it."""
        return self._lines.get(path)

    def nearest(self, path: KeyPath) -> int:
        """The line of the key, or of the closest section around it that the file has."""
        return next(line for part in _upwards(path) if (line := self._lines.get(part, 1 if not part else None)))

    def error(self, path: KeyPath, message: str, *, hint: str = "") -> FleetFileError:
        """An error about the value at `path`: `FILE:LINE: KEY: message`."""
        return error_at(self.file, self.nearest(path), path, message, hint)

    def moved(self, moves: Mapping[KeyPath, KeyPath]) -> Places:
        """The same places, with all that stood at or below each old path at or below the new one."""
        return Places(self.file, {_moved(path, moves): line for path, line in self._lines.items()})

    def copied(self, copies: Mapping[KeyPath, KeyPath]) -> Places:
        """The same places, and for each old path its line at the new one too."""
        lines = {new: line for old, new in copies.items() if (line := self._lines.get(old))}
        return Places(self.file, self._lines | lines)


def _printable(text: str) -> str:
    """Control characters would break the line, or play tricks on the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _moved(path: KeyPath, moves: Mapping[KeyPath, KeyPath]) -> KeyPath:
    for part in _upwards(path):
        if part in moves:
            return moves[part] + path[len(part) :]
    return path


def _upwards(path: KeyPath) -> Iterator[KeyPath]:
    """The path itself, then everything that contains it, ending with the whole file."""
    return (path[:size] for size in range(len(path), -1, -1))
