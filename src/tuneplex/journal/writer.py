"""Writes a journal: every entry is in the file before anything else happens, and on the disk soon after.

A process that is killed loses nothing of what it has written, for that is the kernel's by then; a power failure loses
what was written after the last sync.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from tuneplex.journal.entries import Began, Closed, Entered, Entry, Lost, Opened, Progress, Refused
from tuneplex.journal.files import hold, segment, size_of
from tuneplex.journal.frames import framed
from tuneplex.journal.syncer import Syncer, sync_names

__all__ = ["Journal", "JournalLimits"]

_Told = Entered | Opened | Progress | Closed


class JournalLimits(msgspec.Struct, frozen=True):
    """How large a journal may become, and how long entries may be on their way to the disk.

    Attributes:
        segment: Bytes of one file, after which another one is begun.
        age_s: Seconds after which another one is begun, too, if something was written.
        most: Bytes of all files of one process that nobody has read yet.
        kept: Bytes of entries that are kept in memory while they cannot be written.
        sync_s: Between two syncs.
    """

    segment: int = 16 * 1024 * 1024
    age_s: float = 3600.0
    most: int = 1024 * 1024 * 1024
    kept: int = 4 * 1024 * 1024
    sync_s: float = 0.02


class Journal:
    """The journal of one process. Nothing that it does raises: requests go on when a disk does not.

    Args:
        parent: Where the journals of all processes lie; made if it is not there.
        name: Of this one; no other has ever had it.
        fleet: The fleet's name.
        limits: How large it may become.
        wall: Unix time.
        clock: Seconds that only go forward.

    Attributes:
        name: Its name.
        lost: Entries that could not be written.
        trouble: Why entries cannot be written now; empty while they can.
    """

    def __init__(
        self,
        parent: Path,
        name: str,
        *,
        fleet: str = "",
        limits: JournalLimits | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.lost = 0
        self.trouble = ""
        self._fleet = fleet
        self._limits = limits or JournalLimits()
        self._wall = wall
        self._clock = clock
        self._count = 0  # entries that were written
        self._file, self._size, self._begun, self._begun_at = -1, 0, 0, 0.0
        self._open: dict[int, list[_Told]] = {}  # what each file has to say of requests under way
        self._kept: deque[tuple[bytes, int]] = deque()  # each with the request that it ends, or 0
        self._kept_bytes = 0
        self._missing: Lost | None = None
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._waiting_more: list[Callable[[], object]] = []  # for entries that are not written yet
        self._parent = parent
        self._directory: Path | None = None
        self._lock = -1
        self._syncer = Syncer(self._limits.sync_s)
        self._turn()

    # --- writing

    def write(self, entry: Entry) -> bool:
        """Write an entry; one that cannot be written now is kept in memory for a while. False if it is lost."""
        over = self._note(entry)
        try:
            data = framed(entry)
        except (OverflowError, ValueError):  # a number that no entry can hold
            return self._lose(over)
        if self._kept or not self._put(data):
            return self._keep(data, over)
        self._open.pop(over, None)  # not before: putting it may have begun a file, which says what it ends
        return True

    def retry(self) -> None:
        """Try again to write what could not be; called now and then."""
        while self._kept and self._put(self._kept[0][0]):
            data, over = self._kept.popleft()
            self._kept_bytes -= len(data)
            self._open.pop(over, None)
        if not self._kept and self._missing is not None and self._put(framed(self._missing)):
            self._missing = None
        if self._size > self._begun and self._clock() - self._begun_at > self._limits.age_s:
            self._turn()
        if not self._kept and self._waiting_more:
            self._waiting += [(self._count, then) for then in self._waiting_more]
            self._waiting_more = []
        if self._waiting:
            self._ask_disk()

    def bound(self, most: int) -> None:
        """Let all files together have no more bytes than these from now on; see `JournalLimits.most`."""
        self._limits = msgspec.structs.replace(self._limits, most=most)

    def _note(self, entry: Entry) -> int:
        """Keep in mind what the next file has to say again; the number of the request that is over, or 0."""
        if isinstance(entry, Opened):
            told = self._open.setdefault(entry.number, [])
            if told and isinstance(told[0], Entered):
                told.clear()  # this one says all of it
            told.append(entry)
        elif isinstance(entry, Entered):
            self._open[entry.number] = [entry]
        elif isinstance(entry, Refused) or (isinstance(entry, Closed) and not entry.attempt):
            return entry.number
        elif isinstance(entry, Progress | Closed):
            self._note_more(entry)
        return 0

    def _note_more(self, entry: Progress | Closed) -> None:
        told = self._open.get(entry.number)
        if told is None:
            return
        if isinstance(told[-1], Progress) and isinstance(entry, Progress):
            told.pop()
        told.append(entry)

    def _put(self, data: bytes) -> bool:
        """Write it at the end of the file, all of it or nothing; whether that was done."""
        full = self._size >= self._limits.segment or self._syncer.refused or self._file < 0
        if full and not self._turn():
            return False
        try:
            written = os.write(self._file, data)
        except OSError as error:
            return self._failed(error.strerror or str(error))
        if written != len(data):
            return self._cut_back()
        if self.trouble:
            self.trouble = ""
        self._size += written
        self._count += 1
        self._syncer.wrote(self._count)
        return True

    def _cut_back(self) -> bool:
        """Half an entry was written: the disk is full. Nobody could read what would come behind it."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._size = self._limits.segment  # so that the next one begins another file
        return self._failed("no space is left")

    def _failed(self, why: str) -> bool:
        self.trouble = why
        return False

    def _keep(self, data: bytes, over: int) -> bool:
        if self._kept_bytes + len(data) <= self._limits.kept:
            self._kept.append((data, over))
            self._kept_bytes += len(data)
            return True
        return self._lose(over)

    def _lose(self, over: int) -> bool:
        self._open.pop(over, None)
        now = self._wall()
        self.lost += 1
        before = self._missing
        self._missing = Lost(now, now, 1) if before is None else Lost(before.since, now, before.count + 1)
        return False

    # --- files

    def _begin(self, directory: Path) -> None:
        """Begin a file, with all that is under way; nobody sees it before that is in it.

        Raises:
            OSError: It cannot be begun; the one before goes on.
        """
        path = segment(directory, self._count + 1)
        hidden = directory / f".{path.name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        file = os.open(hidden, flags, 0o600)
        under_way = [entry for entries in self._open.values() for entry in entries]
        first = [Began(self.name, self._fleet, self._wall()), *map(_carried, under_way)]
        data = b"".join(map(framed, first))
        try:
            _write_all(file, data)
            hidden.rename(path)
        except OSError:
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise
        self._file = file
        self._size = self._begun = len(data)
        self._begun_at = self._clock()
        self._count += len(first)
        self._syncer.use(file, directory)
        self._syncer.wrote(self._count)

    def _turn(self) -> bool:
        """Go on in another file; whether there is one."""
        try:
            if self._directory is None:
                self._directory, self._lock = _made(self._parent, self.name)
            if size_of(self._directory) >= self._limits.most:
                return self._failed("it is full, and nobody reads it")
            self._begin(self._directory)
        except OSError as error:
            return self._failed(error.strerror or str(error))
        return True

    # --- the disk

    def when_durable(self, then: Callable[[], object]) -> None:
        """Call this, on the event loop, when all that was written up to now is on the disk; never if that fails."""
        if self._kept:
            self._waiting_more.append(then)
        else:
            self._waiting.append((self._count, then))
            self._ask_disk()

    def forget(self, then: Callable[[], object]) -> None:
        """Nobody waits for this any more."""
        self._waiting = [one for one in self._waiting if one[1] != then]
        self._waiting_more = [one for one in self._waiting_more if one != then]

    def _ask_disk(self) -> None:
        loop = asyncio.get_running_loop()
        self._syncer.hurry(lambda: loop.call_soon_threadsafe(self._tell))

    def _tell(self) -> None:
        durable, doubtful = self._syncer.durable, self._syncer.doubtful
        ready = [then for number, then in self._waiting if doubtful < number <= durable]
        self._waiting = [one for one in self._waiting if one[0] > max(durable, doubtful)]
        if self._waiting and not self.trouble:
            self._ask_disk()
        for then in ready:
            then()

    @property
    def sync_failures(self) -> int:
        """How often the disk has refused to keep what was written."""
        return self._syncer.failures

    def close(self) -> None:
        """Bring all of it to the disk; nothing can be written afterwards. What could not be is lost now."""
        self._waiting, self._waiting_more = [], []
        self.retry()
        self.lost += len(self._kept)
        self._kept.clear()
        self._syncer.close()
        if self._lock >= 0:
            os.close(self._lock)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]  # at a full disk the next call fails, and says so


def _carried(entry: _Told) -> _Told:
    return msgspec.structs.replace(entry, carried=True) if isinstance(entry, Entered | Opened) else entry


def _made(parent: Path, name: str) -> tuple[Path, int]:
    """The directory, which nobody sees before its lock is held, and the lock."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hidden, directory = parent / f".{name}", parent / name
    hidden.mkdir(mode=0o700, exist_ok=True)
    lock = hold(hidden)
    hidden.rename(directory)
    sync_names(parent)
    return directory, lock
