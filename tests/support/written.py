"""A journal of a gateway under test, and what it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.front import Front
from tuneplex.journal import Finished, Follower, Journal, JournalLimits, Replay

__all__ = ["Written"]


class Written:
    """A journal, and what it says."""

    def __init__(self, parent: Path) -> None:
        self.journal = Journal(parent, "g-1", limits=JournalLimits(segment=3000))
        self._directory = parent / "g-1"

    def entries(self) -> list[str]:
        """What was written, by kind."""
        follower = Follower(self._directory)
        found: list[str] = []
        while entries := follower.read():
            found.extend(type(one.entry).__name__ for one in entries)
        return found

    def finished(self, *, crashed: bool = False) -> list[Finished]:
        """The requests that are over; as if the process had ended now, if it has `crashed`."""
        follower, replay = Follower(self._directory), Replay("g-1")
        found: list[Finished | None] = []
        while entries := follower.read():
            found.extend(replay.take(one.number, one.entry) for one in entries)
        assert not follower.damages
        return [one for one in [*found, *(replay.abandon() if crashed else ())] if one is not None]

    def bytes(self) -> bytes:
        """All that was written, as it lies in the files."""
        return b"".join(path.read_bytes() for path in self._directory.glob("*.journal"))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be written."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the file tells nobody
                await asyncio.sleep(0.01)

    def agrees_with(self, front: Front) -> None:
        """All that was opened is over, each once, as the gateway has counted it, with the same tokens."""
        found = [one for one in self.finished() if one.attempts]
        assert len({one.id for one in found}) == len(found)
        assert not [one for one in self.finished(crashed=True) if one.outcome == "gateway_crashed"]
        assert Counter(one.outcome for one in found) == {name: int(count) for name, count in front.outcomes().items()}
        report = front.gateway.report().counters
        for name in ("prompt", "completion"):
            counted = sum(count for _labels, count in report.get(f"tuneplex_{name}_tokens_total", ()))
            assert sum(getattr(one, name) for one in found) == counted
        assert all(tried.outcome for one in found for tried in one.attempts)
