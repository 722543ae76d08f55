"""A journal on a disk that is full or fails, and beside readers that look at the wrong moment."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.journal.test_replay import opened
from tuneplex.journal import Closed, Entered, Follower, Journal, JournalLimits, Opened, Progress, Replay
from tuneplex.journal.files import is_held, segments

AT = 1_700_000_000.0
ENTERED = Entered(99, AT, "req-99", "bank", "k1", "legal", "legal@1", "chat")


class Disk:
    """A disk that is full when a test says so, but for what has these bytes in it.

    Attributes:
        full: It is.
        takes: What can be written all the same.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.takes = b"\\0never"
        self._real = os.write
        monkeypatch.setattr(os, "write", self._write)

    def _write(self, file: int, data: bytes) -> int:
        if self.full and self.takes not in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._real(file, data)


async def test_who_waits_is_not_told_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that is kept in memory is on no disk, also when a new file could be begun meanwhile."""
    disk = Disk(monkeypatch)
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=500))
    while journal._size < 500:
        journal.write(opened(1))
    disk.full = True
    told = asyncio.Event()
    journal.write(ENTERED)
    journal.when_durable(told.set)
    disk.takes = b"g-1"  # a file's first entry
    for _ in range(3):
        journal.retry()
        await asyncio.sleep(0.05)
    assert not told.is_set()
    disk.full = False
    journal.retry()
    async with asyncio.timeout(10):
        await told.wait()
    journal.close()
    assert b"req-99" in b"".join(path.read_bytes() for path in segments(tmp_path / "g-1"))


async def test_what_is_written_while_a_sync_fails_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk says of a file after it has refused it once is not believed, whenever an entry was written."""
    syncing, go_on, real, calls = threading.Event(), threading.Event(), os.fdatasync, [0]

    def failing(file: int) -> None:
        calls[0] += 1
        if calls[0] == 2:  # the first one is for the beginning of the file
            syncing.set()
            go_on.wait(10)
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fdatasync", failing)
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(sync_s=0.001))
    await asyncio.sleep(0.1)
    journal.write(opened(1))
    await asyncio.to_thread(syncing.wait, 10)
    told, later = asyncio.Event(), asyncio.Event()
    journal.write(ENTERED)
    journal.when_durable(told.set)
    go_on.set()
    await asyncio.sleep(0.2)
    assert (told.is_set(), journal.sync_failures) == (False, 1)
    journal.write(opened(2))
    journal.when_durable(later.set)
    async with asyncio.timeout(10):
        await later.wait()
    assert not told.is_set()
    journal.close()


def test_a_full_disk_does_not_keep_a_process_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file can be begun, entries are kept in memory until one can."""
    disk = Disk(monkeypatch)
    disk.full = True
    journal = Journal(tmp_path, "g-1")
    assert journal.write(opened(1))
    assert "space" in journal.trouble
    disk.full = False
    journal.retry()
    assert not journal.trouble
    assert [type(one.entry) for one in Follower(tmp_path / "g-1").read()][-1] is Opened
    journal.close()


def test_a_file_is_seen_when_it_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that looks while files cannot be begun sees none of them, and misses nothing later."""
    disk = Disk(monkeypatch)
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=400, kept=10**6))
    follower, numbers = Follower(tmp_path / "g-1"), []
    for number in range(1, 60):
        disk.full = number % 20 > 5
        journal.write(opened(number))
        numbers += [one.entry.number for one in follower.read() if isinstance(one.entry, Opened)]
    disk.full = False
    journal.retry()
    journal.close()
    while entries := follower.read():
        numbers += [one.entry.number for one in entries if isinstance(one.entry, Opened)]
    assert set(numbers) == set(range(1, 60))
    assert not follower.damages


def test_who_has_entered_is_carried_on(tmp_path: Path) -> None:
    """A request that waits when a file is turned, and whose process is killed then, still has its end."""
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=400))
    journal.write(ENTERED)
    for number in range(1, 10):
        journal.write(opened(number))
        journal.write(Closed(number, 0, AT, "complete"))
    journal.close()
    for path in segments(tmp_path / "g-1")[:-1]:
        path.unlink()
    follower, replay = Follower(tmp_path / "g-1"), Replay("g-1")
    while entries := follower.read():
        for one in entries:
            replay.take(one.number, one.entry)
    assert "g-1/99" in [one.id for one in replay.abandon()]


@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_begins_with_an_end_says_of_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    """A request whose end is the first entry of a file can be told from that file alone."""
    disk = Disk(monkeypatch)
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=100))
    journal.write(opened(1))
    assert journal._size > 100
    disk.full = kept
    journal.write(Closed(1, 0, AT, "complete", 200, 10, 0, 7))
    disk.full = False
    journal.retry()
    journal.close()
    segments(tmp_path / "g-1")[0].unlink()
    replay = Replay("g-1")
    found = [replay.take(one.number, one.entry) for one in Follower(tmp_path / "g-1").read()]
    assert [(one.id, one.completion) for one in found if one is not None] == [("g-1/1", 7)]


def test_a_damaged_file_is_read_no_further(tmp_path: Path) -> None:
    """Whenever a reader looks, what follows a damage has no numbers but those that it really has."""
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=10**6))
    for number in range(1, 6):
        journal.write(opened(number))
    path = segments(tmp_path / "g-1")[0]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    follower = Follower(tmp_path / "g-1")
    first = follower.read()
    journal.write(opened(6))
    assert (len(first), follower.read(), len(follower.damages)) == (5, [], 1)
    journal.close()


def test_files_are_turned_by_age_too(tmp_path: Path) -> None:
    """A quiet gateway begins another file after a while, so that the old one can go; but not if nothing was written."""
    now = [0.0]
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(age_s=60), clock=lambda: now[0])
    now[0] = 61
    journal.retry()
    assert len(segments(tmp_path / "g-1")) == 1
    journal.write(opened(1))
    journal.retry()
    assert len(segments(tmp_path / "g-1")) == 2
    journal.close()


def test_an_entry_that_none_can_hold_is_lost_and_told(tmp_path: Path) -> None:
    """A number that is too large for any entry raises nothing."""
    journal = Journal(tmp_path, "g-1")
    assert not journal.write(Progress(1, AT, 2**64, 0))
    assert journal.lost == 1
    journal.close()


def test_entries_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    """What a later version has to say is no damage, and what follows it is read."""

    class Later(msgspec.Struct, array_like=True, tag="later"):
        what: str

    journal = Journal(tmp_path, "g-1")
    write: Callable[[object], bool] = journal.write  # type: ignore[assignment]
    write(Later("x"))
    journal.write(opened(1))
    follower = Follower(tmp_path / "g-1")
    assert [one.number for one in follower.read() if isinstance(one.entry, Opened)] == [3]
    assert not follower.damages
    journal.close()


def test_a_journal_without_its_lock_is_not_taken_for_ended(tmp_path: Path) -> None:
    """Where the lock is missing, nobody knows whether the process lives."""
    Journal(tmp_path, "g-1").close()
    assert not is_held(tmp_path / "g-1")
    (tmp_path / "g-1" / "lock").unlink()
    assert is_held(tmp_path / "g-1")
