"""A journal as its process writes it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tuneplex.journal import Closed, Follower, Journal, JournalLimits, Lost, Opened, Progress
from tuneplex.journal.files import is_held, segments

AT = 1_700_000_000.0


def opened(number: int, *, attempt: int = 1) -> Opened:
    """An attempt at a request."""
    return Opened(
        number, attempt, AT, AT, f"req-{number}", "acme", "k1", "legal", "legal@1", "chat", True, "p", "p-0", "p-0/1"
    )


def everything(directory: Path) -> list[object]:
    """All entries of a journal."""
    follower = Follower(directory)
    found: list[object] = []
    while entries := follower.read():
        found.extend(one.entry for one in entries)
    assert not follower.damages
    return found


def test_an_entry_can_be_read_at_once(tmp_path: Path) -> None:
    """What was written is seen by another reader before anything else happens."""
    journal = Journal(tmp_path, "g-1", fleet="demo")
    follower = Follower(tmp_path / "g-1")
    assert [type(one.entry).__name__ for one in follower.read()] == ["Began"]
    assert journal.write(opened(1))
    assert [(one.number, one.entry) for one in follower.read()] == [(2, opened(1))]
    assert not follower.ended
    journal.close()
    assert not follower.read()
    assert follower.ended


def test_files_can_be_read_alone(tmp_path: Path) -> None:
    """Each further file says again what is under way, and the numbers go on."""
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=600))
    journal.write(opened(1))
    journal.write(Progress(1, AT, 10, 64))
    for number in range(2, 12):
        journal.write(opened(number))
        journal.write(Closed(number, 0, AT, "complete"))
    journal.close()
    last = segments(tmp_path / "g-1")[-1]
    assert len(segments(tmp_path / "g-1")) > 2
    for path in segments(tmp_path / "g-1")[:-1]:
        path.unlink()
    follower = Follower(tmp_path / "g-1")
    entries = follower.read()
    assert entries[0].number == int(last.stem)
    again = [one.entry for one in entries[1:3]]
    assert [(type(one).__name__, getattr(one, "number", None)) for one in again] == [("Opened", 1), ("Progress", 1)]
    assert isinstance(again[0], Opened)
    assert again[0].carried


def test_its_process_is_known_to_live(tmp_path: Path) -> None:
    """A journal is held for as long as its process writes."""
    journal = Journal(tmp_path, "g-1")
    assert is_held(tmp_path / "g-1")
    journal.close()
    assert not is_held(tmp_path / "g-1")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_writer import opened
from tuneplex.journal import Journal, JournalLimits
journal = Journal(Path({parent!r}), "g-1", limits=JournalLimits(segment=2000))
for number in range(1, 1000):
    journal.write(opened(number))
    if number == {last}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("last", [1, 7, 50])
def test_a_killed_process_loses_nothing(tmp_path: Path, last: int) -> None:
    """All that a process has written before it was killed is read."""
    script = KILLED.format(tests=str(Path(__file__).parent), parent=str(tmp_path), last=last)
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -signal.SIGKILL
    numbers = {one.number for one in everything(tmp_path / "g-1") if isinstance(one, Opened)}
    assert numbers == set(range(1, last + 1))
    assert not is_held(tmp_path / "g-1")


def test_half_an_entry_ends_a_journal(tmp_path: Path) -> None:
    """Wherever a power failure has cut the last file, all entries before that are read."""
    journal = Journal(tmp_path, "g-1")
    for number in (1, 2):
        journal.write(opened(number))
    journal.close()
    path = segments(tmp_path / "g-1")[0]
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert len(everything(tmp_path / "g-1")) < 3
    path.write_bytes(whole)
    assert len(everything(tmp_path / "g-1")) == 3


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    """What was damaged is named with its place, and the next file is read."""
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=300))
    for number in range(1, 8):
        journal.write(opened(number))
        journal.write(Closed(number, 0, AT, "complete"))
    journal.close()
    paths = segments(tmp_path / "g-1")
    data = bytearray(paths[1].read_bytes())
    data[60] ^= 1
    paths[1].write_bytes(data)
    follower = Follower(tmp_path / "g-1")
    numbers: list[int] = []
    while entries := follower.read():
        numbers.extend(one.number for one in entries)
    assert [paths[1].name in follower.damages[0], paths[2].name in follower.damages[1]] == [True, True]
    firsts = [int(path.stem) for path in paths]
    assert set(range(firsts[2], firsts[3])) < set(numbers)
    assert firsts[2] - 1 not in numbers


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_writer import opened
from tuneplex.journal import Journal, JournalLimits
journal = Journal(Path({parent!r}), "g-1", limits=JournalLimits(segment=100_000, kept=1000))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, hard))
written = [journal.write(opened(number)) for number in range(1, 41)]
assert journal.trouble and journal.lost == written.count(False) > 10, (journal.trouble, journal.lost)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.retry()
assert not journal.trouble
assert journal.write(opened(41))
print(journal.lost)
journal.close()
"""


@pytest.mark.parametrize("size", [1000, 1050, 1101])
def test_a_full_disk_costs_what_is_told(tmp_path: Path, size: int) -> None:
    """On a full disk some entries are kept, the others counted, and when there is space again the loss is written."""
    script = FULL.format(tests=str(Path(__file__).parent), parent=str(tmp_path), bytes=size)
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    lost = int(ended.stdout)
    entries = everything(tmp_path / "g-1")
    numbers = [one.number for one in entries if isinstance(one, Opened)]
    assert numbers == [*range(1, 41 - lost), 41]
    assert [one.count for one in entries if isinstance(one, Lost)] == [lost]


def test_a_journal_that_nobody_reads_has_a_bound(tmp_path: Path) -> None:
    """At its largest size nothing more is written, until somebody has read the oldest file."""
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=500, most=2000, kept=0))
    for number in range(1, 100):
        journal.write(opened(number))
        journal.write(Closed(number, 0, AT, "complete"))
    assert "full" in journal.trouble
    assert journal.lost > 100
    follower = Follower(tmp_path / "g-1")
    while follower.read():
        pass
    for path in follower.finished:
        path.unlink()
    journal.retry()
    assert not journal.trouble
    assert sum(isinstance(one.entry, Lost) for one in follower.read()) == 1
    journal.close()


async def test_who_waits_hears_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the disk is told when all that was written before is there, and not before."""
    may_sync, real = threading.Event(), os.fdatasync

    def slow(file: int) -> None:
        assert may_sync.wait(30)
        real(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    journal = Journal(tmp_path, "g-1")
    journal.write(opened(1))
    told = asyncio.Event()
    journal.when_durable(told.set)
    await asyncio.sleep(0.1)
    assert not told.is_set()
    may_sync.set()
    async with asyncio.timeout(30):
        await told.wait()
    journal.close()


async def test_a_disk_that_refuses_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync whoever waited hears nothing, and what comes later goes to another file and is told."""
    real, fails = os.fdatasync, [True]

    def failing(file: int) -> None:
        if fails:
            fails.pop()
            raise OSError(5, "Input/output error")
        real(file)

    journal = Journal(tmp_path, "g-1", limits=JournalLimits(sync_s=0.001))
    while journal.sync_failures == 0:
        monkeypatch.setattr(os, "fdatasync", failing)
        journal.write(opened(1))
        early = asyncio.Event()
        journal.when_durable(early.set)
        await asyncio.sleep(0.02)
    assert not early.is_set()
    later = asyncio.Event()
    journal.write(opened(2))
    journal.when_durable(later.set)
    async with asyncio.timeout(30):
        await later.wait()
    assert not early.is_set()
    assert len(segments(tmp_path / "g-1")) == 2
    journal.close()


def test_a_bound_can_change(tmp_path: Path) -> None:
    """A journal that may hold less from now on takes no more when it is full, and goes on when it may hold more."""
    journal = Journal(tmp_path, "g-1", limits=JournalLimits(segment=500, kept=0))
    for number in range(20):
        assert journal.write(opened(number))
    journal.bound(1000)
    assert not all(journal.write(opened(number)) for number in range(20, 30))
    assert "full" in journal.trouble
    journal.bound(10**6)
    assert journal.write(opened(31))
    journal.close()
