"""What control does with the gateways' journals: usage into SQLite, and the audit log."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tuneplex.control.auditor import Auditor
from tuneplex.control.bookkeeper import Bookkeeper
from tuneplex.control.journals import Journals
from tuneplex.journal import Finished
from tuneplex.records import Store, sqlite_url
from tuneplex.types import Keeping


async def main(folder: Path) -> None:
    """Go on until SIGTERM."""
    store = Store(sqlite_url(folder / "store.db"))
    store.prepare()

    async def keep(finished: Sequence[Finished]) -> None:
        await asyncio.to_thread(store.keep_requests, "bench", finished)

    auditor = Auditor(folder / "audit", base=lambda: "base", settings=Keeping)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        works = [
            group.create_task(work)
            for work in (Journals(folder / "journal", [Bookkeeper(keep), auditor]).run(), auditor.run())
        ]
        await stop.wait()
        for work in works:
            work.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
