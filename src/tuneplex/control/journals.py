"""Reads the journals of all gateways, living and dead, for those who make something of them."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tuneplex.errors import TuneplexError
from tuneplex.journal import Follower, Numbered
from tuneplex.journal.files import LOCK, is_held
from tuneplex.log import get_logger

__all__ = ["Journals", "Taker"]

_log = get_logger(__name__)
_PAUSE_S = 0.25
_RETRY_S = 1.0
_ABANDONED_S = 60.0


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

    def gone(self, journal: str) -> None:
        """The journal was removed, as everybody has kept all of it; called in some thread."""

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
            f"{reading.name} lacks something: {reading.trouble}" for reading in self._readings if reading.trouble
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
                for reading in readings:
                    reading.gone(name)
                continue
            finished = [reading.finished(name) for reading in readings]
            for path in set.intersection(*finished) if finished else ():
                path.unlink(missing_ok=True)
                for reading in readings:
                    reading.removed(name, path)
        for hidden in self._directory.glob(".*"):  # of a process that was killed while it made its journal
            if _is_abandoned(hidden):
                shutil.rmtree(hidden, ignore_errors=True)


class _Reading:
    """How far one taker has come."""

    def __init__(self, taker: Taker, wanted: Callable[[], bool] = lambda: True) -> None:
        self.wanted = wanted
        self._taker = taker
        self._followers: dict[str, Follower] = {}
        self._owed = False
        self._waits = ""
        self._unread: dict[str, str] = {}  # journals that cannot be read, and why
        self.done: set[str] = set()

    @property
    def name(self) -> str:
        """Whose it is."""
        return self._taker.name

    @property
    def trouble(self) -> str:
        """Why it has to wait, or cannot read all, in words for people; empty if nothing is wrong."""
        return self._waits or next((f"journal {name}: {why}" for name, why in self._unread.items()), "")

    def gone(self, name: str) -> None:
        """A journal was removed."""
        self._taker.gone(name)

    def removed(self, name: str, path: Path) -> None:
        """One file of a journal was removed."""
        known = self._followers.get(name)
        if known is not None and path in known.finished:
            known.finished.remove(path)

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
            try:
                found = await self._read(name, directory / name) or found
            except Exception as error:  # noqa: BLE001 - the others must be read, whatever is wrong with this one
                self._note_unread(name, str(error) or type(error).__name__)
            else:
                missing = "" if (directory / name / LOCK).exists() or name in self.done else "its lock is missing"
                self._note_unread(name, missing)
        return found

    async def _read(self, name: str, directory: Path) -> bool:
        """Take what is new of one journal; whether there was anything."""
        follower = self._followers.setdefault(name, Follower(directory))
        entries = await asyncio.to_thread(follower.read)
        self._tell(follower)
        if entries:
            self._taker.take(name, entries)
        if follower.ended:
            self._taker.end(name)
        if entries or follower.ended:
            await self._keep()
        if follower.ended:
            self.done.add(name)
            del self._followers[name]
        return bool(entries)

    def _note_unread(self, name: str, why: str) -> None:
        if why and self._unread.get(name) != why:
            _log.error("a journal cannot be read", taker=self._taker.name, journal=name, why=why)
        if why:
            self._unread[name] = why
        else:
            self._unread.pop(name, None)

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
        if trouble and not self._waits:
            _log.warning("journals have to wait", taker=self._taker.name, why=trouble)
        elif self._waits and not trouble:
            _log.info("journals go on", taker=self._taker.name)
        self._waits = trouble

    def _tell(self, follower: Follower) -> None:
        for words in follower.damages:
            _log.error("a journal is damaged", where=words)
        follower.damages.clear()


def _is_abandoned(hidden: Path) -> bool:
    try:
        old = time.time() - hidden.stat().st_mtime > _ABANDONED_S
    except FileNotFoundError:  # it has got its name just now
        return False
    return old and not ((hidden / LOCK).exists() and is_held(hidden))


def _names(directory: Path) -> list[str]:
    if not directory.exists():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
