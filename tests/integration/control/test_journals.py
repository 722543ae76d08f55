"""Who reads the journals, and when they are removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from tuneplex.control.journals import Journals
from tuneplex.journal import Closed, Journal, Numbered

AT = 1_700_000_000.0


class Reader:
    """Counts what it takes."""

    name = "reader"

    def __init__(self) -> None:
        self.taken = 0
        self.ended: list[str] = []
        self.removed: list[str] = []

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Count them."""
        del journal
        self.taken += sum(isinstance(one.entry, Closed) for one in entries)

    def end(self, journal: str) -> None:
        """Note it."""
        self.ended.append(journal)

    def gone(self, journal: str) -> None:
        """It was removed."""
        self.removed.append(journal)

    async def keep(self) -> None:
        """Nothing is kept."""


def written(directory: Path, name: str) -> None:
    """A journal with one entry, whose process has ended."""
    journal = Journal(directory, name)
    journal.write(Closed(1, 0, AT, "complete"))
    journal.close()


async def test_who_reads_only_at_times_holds_nothing_up(tmp_path: Path) -> None:
    """A journal that all who want it have read is removed; whoever wants nothing now is not waited for."""
    always, sometimes, wanted = Reader(), Reader(), [False]
    journals = Journals(tmp_path, [always], [(sometimes, lambda: wanted[0])])
    running = asyncio.create_task(journals.run())
    for name, wants in (("g-1", False), ("g-2", True), ("g-3", False)):
        wanted[0] = wants
        written(tmp_path, name)
        async with asyncio.timeout(10):
            while (tmp_path / name).exists():  # noqa: ASYNC110 - the directory tells nobody
                await asyncio.sleep(0.01)
    running.cancel()
    assert (always.taken, always.ended, always.removed) == (3, ["g-1", "g-2", "g-3"], ["g-1", "g-2", "g-3"])
    assert (sometimes.taken, sometimes.ended) == (1, ["g-2"])


async def test_a_journal_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    """One that is none, or lacks its lock, is told, and the others are read and removed."""
    reader = Reader()
    journals = Journals(tmp_path, [reader])
    (tmp_path / "a-1").mkdir()
    (tmp_path / "a-1" / f"{1:016d}.journal").mkdir()
    written(tmp_path, "b-1")
    (tmp_path / "b-1" / "lock").unlink()
    running = asyncio.create_task(journals.run())
    written(tmp_path, "c-1")
    async with asyncio.timeout(10):
        while reader.removed != ["c-1"]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert "journal a-1" in journals.trouble
    assert [await asyncio.to_thread((tmp_path / name).exists) for name in ("a-1", "b-1")] == [True, True]
    running.cancel()


async def test_a_journal_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    """A directory that has no name yet is somebody's who is just starting, unless it is old."""
    journals = Journals(tmp_path, [Reader()])
    (tmp_path / ".new").mkdir()
    (tmp_path / ".old").mkdir()
    os.utime(tmp_path / ".old", (AT, AT))
    running = asyncio.create_task(journals.run())
    async with asyncio.timeout(10):
        while (tmp_path / ".old").exists():  # noqa: ASYNC110 - the directory tells nobody
            await asyncio.sleep(0.01)
    assert (tmp_path / ".new").exists()
    running.cancel()
