"""Objects fetched in parallel ranges, so that a cut connection or a killed process costs only what was under way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tuneplex.adapters.progress import Progress
from tuneplex.adapters.workers import each
from tuneplex.errors import ObjectStoreError
from tuneplex.objects.client import Found, Objects

__all__ = ["Ranges", "Target"]

_RANGE = 16 * 1024 * 1024
_WORKERS = 8
_TRIES = 3  # in a row that bring nothing
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Target:
    """An object, and the file that it goes to.

    Attributes:
        found: As the store listed it.
        file: Where to. Beside it lies a list of the ranges that have arrived, until all have.
    """

    found: Found
    file: Path

    @property
    def arrived_file(self) -> Path:
        """The list of the ranges that have arrived: its first line says how long they are, others where they begin."""
        return self.file.with_name(f"{self.file.name}.arrived")

    def arrived(self, length: int) -> set[int]:
        """Where those ranges begin that are in the file and on the disk."""
        try:
            first, *others = self.arrived_file.read_text("ascii").split("\n")[:-1]
        except (OSError, ValueError):
            return set()
        usable = first == str(length) and self.file.is_file() and self.file.stat().st_size == self.found.size
        return {int(line) for line in others if line.isdecimal()} if usable else set()

    def sizes(self, begins: set[int], length: int) -> int:
        """How many bytes the ranges that begin there have."""
        return sum(min(length, self.found.size - begin) for begin in begins)


class Ranges:
    """Fetches objects into files of which a part may be there from an earlier try.

    Args:
        objects: Where from.
        progress: Told how many bytes have arrived.
        length: Of a range, bytes.
    """

    def __init__(self, objects: Objects, progress: Progress, *, length: int = _RANGE) -> None:
        self._objects = objects
        self._progress = progress
        self._length = length
        self._lock = threading.Lock()
        self._done = self._total = 0

    def lacking(self, targets: Sequence[Target]) -> int:
        """How many bytes are still to be fetched."""
        return sum(one.found.size - one.sizes(one.arrived(self._length), self._length) for one in targets)

    def fetch(self, targets: Sequence[Target], total: int) -> None:
        """Fill all files; `total` is what the progress ends with, and what is not to be fetched counts as done.

        Raises:
            ObjectStoreError: The store refuses, or does not answer for long; what has arrived stays.
            OSError: A file cannot be written.
        """
        self._done, self._total = total - self.lacking(targets), total
        self._progress.advance(self._done, total)
        each((task for target in targets for task in self._tasks(target)), _WORKERS)

    def _tasks(self, target: Target) -> Iterator[Callable[[threading.Event], None]]:
        arrived = target.arrived(self._length)
        if not arrived:
            _begin(target, self._length)
        for begin in range(0, target.found.size, self._length):
            if begin not in arrived:
                yield partial(self._range, target, begin)

    def _range(self, target: Target, begin: int, stop: threading.Event) -> None:
        """Fetch one range. What broke off is gone on with at the byte where it did."""
        at, end, tries = begin, min(begin + self._length, target.found.size), 0
        with target.file.open("r+b", buffering=0) as file:
            while at < end and not stop.is_set():
                before = at
                try:
                    for piece in self._objects.read(target.found, at, end):
                        if stop.is_set():
                            return
                        _write_at(file.fileno(), piece, at)
                        at += len(piece)
                        self._count(len(piece))
                except ObjectStoreError as error:
                    tries = 1 if at > before else tries + 1
                    if not error.again or tries >= _TRIES:
                        raise
                    stop.wait(_PAUSE_S * 2**tries)
            if at == end:
                os.fdatasync(file.fileno())
                self._note(target, begin)

    def _count(self, length: int) -> None:
        with self._lock:
            self._done += length
            self._progress.advance(self._done, self._total)

    def _note(self, target: Target, begin: int) -> None:
        with self._lock, target.arrived_file.open("a", encoding="ascii") as listed:
            listed.write(f"{begin}\n")


def _begin(target: Target, length: int) -> None:
    """An empty file of the full size, and a list of nothing."""
    with contextlib.suppress(FileNotFoundError):
        target.arrived_file.unlink()
    with target.file.open("wb") as file:
        file.truncate(target.found.size)
    target.arrived_file.write_text(f"{length}\n", "ascii")


def _write_at(file: int, piece: bytes, at: int) -> None:
    view = memoryview(piece)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
