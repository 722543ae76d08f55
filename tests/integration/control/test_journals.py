"""Who reads the journals, and when they are removed."""

from __future__ import annotations

import asyncio
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

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Count them."""
        del journal
        self.taken += sum(isinstance(one.entry, Closed) for one in entries)

    def end(self, journal: str) -> None:
        """Note it."""
        self.ended.append(journal)

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
    assert (always.taken, always.ended) == (3, ["g-1", "g-2", "g-3"])
    assert (sometimes.taken, sometimes.ended) == (1, ["g-2"])
