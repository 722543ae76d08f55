"""Who reads the journals, and when they are removed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tuneplex.control.auditor import Auditor
from tuneplex.control.bookkeeper import Bookkeeper
from tuneplex.control.journals import Journals
from tuneplex.errors import StoreError
from tuneplex.journal import Closed, Journal, JournalLimits, Numbered, Progress, Refused
from tuneplex.types import Keeping

AT = 1_700_000_000.0


class Reader:
    """Counts what it takes."""

    name = "reader"

    def __init__(self) -> None:
        self.taken = 0
        self.ended: list[str] = []

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Count them."""
        del journal
        self.taken += sum(isinstance(one.entry, Closed) for one in entries)

    def end(self, journal: str) -> None:
        """Note it."""
        self.ended.append(journal)

    def gone(self, journal: str) -> None:
        """Nothing was kept of it."""

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
        await until(partial(removed, tmp_path / name))
    running.cancel()
    assert (always.taken, always.ended) == (3, ["g-1", "g-2", "g-3"])
    assert (sometimes.taken, sometimes.ended) == (1, ["g-2"])


def removed(path: Path) -> bool:
    """Whether it is gone."""
    return not path.exists()


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - directories tell nobody
            await asyncio.sleep(0.01)


async def test_a_bad_neighbour_holds_nothing_up(tmp_path: Path) -> None:
    """A journal that cannot be read, and one that nobody can know the end of, stay and are told; all others go on."""
    written(tmp_path, "g-0")
    for path in (tmp_path / "g-0").glob("*.journal"):
        path.unlink()
        path.mkdir()
    written(tmp_path, "g-1")
    (tmp_path / "g-1" / "lock").unlink()
    written(tmp_path, "g-2")
    reader = Reader()
    journals = Journals(tmp_path, [reader])
    running = asyncio.create_task(journals.run())
    await until(lambda: not (tmp_path / "g-2").exists())
    running.cancel()
    assert (reader.taken, reader.ended) == (1, ["g-2"])
    assert "g-0" in journals.trouble
    assert "g-1 is left as it is: it has no lock" in journals.trouble
    assert list((tmp_path / "g-1").glob("*.journal"))


async def test_a_journal_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    """A hidden directory is removed only when it is old: its gateway may not have come to its lock yet."""
    fresh, old = tmp_path / ".fresh", tmp_path / ".old"
    for path in (fresh, old):
        path.mkdir()
    os.utime(old, (AT, AT))
    running = asyncio.create_task(Journals(tmp_path, [Reader()]).run())
    await until(lambda: not old.exists())
    running.cancel()
    assert fresh.exists()


async def test_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """What was removed once is not removed again at each look."""
    journal, reader = Journal(tmp_path, "g-1", limits=JournalLimits(segment=100)), Reader()
    for _ in range(50):
        journal.write(Progress(1, AT, 1, 1))
    journals = Journals(tmp_path, [reader])
    running = asyncio.create_task(journals.run())
    await until(lambda: len(list((tmp_path / "g-1").glob("*.journal"))) <= 1)
    await until(lambda: not any(reading.finished("g-1") for reading in journals._readings))
    running.cancel()
    journal.close()


async def audited(directory: Path, times: int) -> list[tuple[str, int]]:
    """What the log holds when control was replaced some times while the store was away."""

    async def keep(_finished: object) -> None:
        raise StoreError("it is away")

    for _ in range(times):
        auditor = Auditor(directory / "audit", base=lambda: "b", settings=Keeping)
        journals = Journals(directory / "journal", [Bookkeeper(keep), auditor])
        running = [asyncio.create_task(work) for work in (journals.run(), auditor.run())]
        await asyncio.sleep(0.5)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    lines = [
        json.loads(line) for path in (directory / "audit").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    return [(one["source"], one["seq"]) for one in lines if one["kind"] == "event"]


async def test_events_are_written_once_while_the_store_is_away(tmp_path: Path) -> None:
    """A journal that still lies there for usage is not written into the audit log again."""
    journal = Journal(tmp_path / "journal", "g-1")
    journal.write(Refused(AT, AT, "r", "acme", "k", "m", "v", "chat", 429, "rate"))
    journal.close()
    assert len(await audited(tmp_path, 3)) == 1
