"""Reads the journals of all gateways, living and dead, for those who make something of them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tuneplex.errors import TuneplexError
from tuneplex.journal import Follower, Numbered
from tuneplex.journal.files import is_held
from tuneplex.log import get_logger

__all__ = ["Journals", "Taker"]

_log = get_logger(__name__)
_PAUSE_S = 0.25
_RETRY_S = 1.0


class Taker(Protocol):
    """Makes something of journals.

    Attributes:
        name: For the log.
    """

    name: str

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Take the next entries of a journal, each once for as long as control lives."""

    def end(self, journal: str) -> None:
        """The journal's process has ended, and all of it was taken."""

    async def keep(self) -> None:
        """Keep what was made of all that was taken, so that no journal is needed for it any more.

        Raises:
            TuneplexError: It cannot be kept now.
            OSError: The same.
        """


class Journals:
    """Each taker reads at a pace of its own; what all of them have kept is removed.

    Args:
        directory: Where the gateways' journals lie.
        takers: Who reads them.
        sometimes: Who does so only at times, and whether it is such a time: what is written at others is kept for
            nobody, and may be gone.
    """

    def __init__(
        self,
        directory: Path,
        takers: Sequence[Taker],
        sometimes: Sequence[tuple[Taker, Callable[[], bool]]] = (),
    ) -> None:
        self._directory = directory
        self._readings = [*map(_Reading, takers), *(_Reading(taker, wanted) for taker, wanted in sometimes)]

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reading in self._readings:
                group.create_task(self._follow(reading))

    @property
    def trouble(self) -> str:
        """Who has to wait, and why, in words for people; empty if nobody does."""
        return "; ".join(
            f"{reading.name} has to wait: {reading.trouble}" for reading in self._readings if reading.trouble
        )

    async def settle(self) -> None:
        """Take and keep all that has been written up to now."""
        for reading in self._readings:
            while await reading.step(await asyncio.to_thread(_names, self._directory), self._directory):
                pass

    async def _follow(self, reading: _Reading) -> None:
        while True:
            try:
                more = await self._step(reading)
            except Exception:  # noqa: BLE001 - the fleet must not depend on its records
                _log.exception("the journals could not be read", taker=reading.name)
                more = False
            if not more:
                await asyncio.sleep(_PAUSE_S)

    async def _step(self, reading: _Reading) -> bool:
        names = await asyncio.to_thread(_names, self._directory)
        more = await reading.step(names, self._directory)
        await asyncio.to_thread(self._clean, names)
        return more

    def _clean(self, names: Sequence[str]) -> None:
        """Remove what nobody needs any more."""
        readings = [reading for reading in self._readings if reading.wanted()]
        for name in names:
            if all(name in reading.done for reading in readings):
                shutil.rmtree(self._directory / name, ignore_errors=True)
                continue
            finished = [reading.finished(name) for reading in readings]
            for path in set.intersection(*finished) if finished else ():
                path.unlink(missing_ok=True)
        for hidden in self._directory.glob(".*"):  # of a process that was killed while it made its journal
            if not is_held(hidden):
                shutil.rmtree(hidden, ignore_errors=True)


class _Reading:
    """How far one taker has come."""

    def __init__(self, taker: Taker, wanted: Callable[[], bool] = lambda: True) -> None:
        self.wanted = wanted
        self._taker = taker
        self._followers: dict[str, Follower] = {}
        self._owed = False
        self.trouble = ""
        self.done: set[str] = set()

    @property
    def name(self) -> str:
        """Whose it is."""
        return self._taker.name

    def finished(self, name: str) -> set[Path]:
        """The files of a journal that it does not need any more."""
        known = self._followers.get(name)
        return set(known.finished) if known is not None and not self._owed else set()

    async def step(self, names: Sequence[str], directory: Path) -> bool:
        """Take what is new; whether there was anything."""
        if not self.wanted():
            self.done.clear()
            self._followers.clear()
            return False
        self.done.intersection_update(names)
        found = False
        for name in names:
            if name in self.done:
                continue
            follower = self._followers.setdefault(name, Follower(directory / name))
            entries = await asyncio.to_thread(follower.read)
            self._tell(follower)
            found = found or bool(entries)
            if entries:
                self._taker.take(name, entries)
            if follower.ended:
                self._taker.end(name)
            if entries or follower.ended:
                await self._keep()
            if follower.ended:
                self.done.add(name)
                del self._followers[name]
        return found

    async def _keep(self) -> None:
        """Until it works: nothing more is read before."""
        self._owed = True
        while self._owed:
            try:
                await self._taker.keep()
            except (TuneplexError, OSError) as error:
                self._note(str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                self._note("")
                self._owed = False

    def _note(self, trouble: str) -> None:
        if trouble and not self.trouble:
            _log.warning("journals have to wait", taker=self._taker.name, why=trouble)
        elif self.trouble and not trouble:
            _log.info("journals go on", taker=self._taker.name)
        self.trouble = trouble

    def _tell(self, follower: Follower) -> None:
        for words in follower.damages:
            _log.error("a journal is damaged", where=words)
        follower.damages.clear()


def _names(directory: Path) -> list[str]:
    if not directory.exists():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
