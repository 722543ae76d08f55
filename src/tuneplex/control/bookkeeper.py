"""Keeps in the store which requests are over, from the gateways' journals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tuneplex.journal import Finished, Lost, Numbered, Replay
from tuneplex.log import get_logger

__all__ = ["Bookkeeper"]

_log = get_logger(__name__)


class Bookkeeper:
    """Makes requests of entries, see `journals.Taker`.

    Args:
        keep: Keeps them in the store; raises `StoreError` when that does not answer.
    """

    name = "usage"

    def __init__(self, keep: Callable[[Sequence[Finished]], Awaitable[None]]) -> None:
        self._keep = keep
        self._replays: dict[str, Replay] = {}
        self._finished: list[Finished] = []

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Take the next entries of a journal."""
        replay = self._replays.setdefault(journal, Replay(journal))
        for one in entries:
            if isinstance(one.entry, Lost):
                words = "entries of a journal could not be written, so usage and audit lack them"
                _log.error(words, journal=journal, entries=one.entry.count)
            finished = replay.take(one.number, one.entry)
            if finished is not None:
                self._finished.append(finished)

    def end(self, journal: str) -> None:
        """The journal's process has ended."""
        replay = self._replays.pop(journal, None)
        lost = replay.abandon() if replay is not None else []
        if lost:
            _log.warning("a gateway ended with requests under way", journal=journal, requests=len(lost))
        self._finished.extend(lost)

    def gone(self, journal: str) -> None:
        """The journal has been removed."""
        del journal  # each request is kept once, whatever comes again

    async def keep(self) -> None:
        """Keep them."""
        if self._finished:
            await self._keep(self._finished)
            self._finished = []
