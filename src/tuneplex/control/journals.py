"""Reads the journals of all gateways, living and dead, for those who make something of them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
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
_BEING_MADE_S = 60.0
_NO_LOCK = "it has no lock, so nobody knows whether its gateway lives"


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
        """The journal has been removed; told from any thread."""

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
        self._stuck: dict[str, str] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reading in self._readings:
                group.create_task(self._follow(reading))

    @property
    def trouble(self) -> str:
        """Who has to wait, and why, in words for people; empty if nobody does."""
        waiting = [f"{reading.name} has to wait: {reading.trouble}" for reading in self._readings if reading.trouble]
        bad = {name: why for reading in self._readings for name, why in reading.bad.items()} | self._stuck
        return "; ".join([*waiting, *(f"the journal {name} is left as it is: {why}" for name, why in bad.items())])

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
        stuck: dict[str, str] = {}
        for name in names:
            try:
                self._clean_one(name)
            except OSError as error:
                stuck[name] = str(error)
        self._stuck = stuck
        for hidden in self._directory.glob(".*"):  # of a process that was killed while it made its journal
            with contextlib.suppress(OSError):
                if time.time() - hidden.stat().st_mtime > _BEING_MADE_S and not _lives(hidden):
                    shutil.rmtree(hidden)

    def _clean_one(self, name: str) -> None:
        readings = [reading for reading in self._readings if reading.wanted()]
        if all(name in reading.done for reading in readings):
            self._remove(name)
            return
        finished = [reading.finished(name) for reading in readings]
        unlinked = set.intersection(*finished) if finished else set()
        for path in unlinked:
            path.unlink(missing_ok=True)
        for reading in self._readings:
            reading.drop(name, unlinked)

    def _remove(self, name: str) -> None:
        """Out of sight first: what is left of it when control is killed meanwhile must not be taken for a journal."""
        hidden = self._directory / f".{name}"
        with contextlib.suppress(FileNotFoundError):  # somebody else was faster
            (self._directory / name).rename(hidden)
        for reading in self._readings:
            reading.gone(name)
        shutil.rmtree(hidden, ignore_errors=True)


class _Reading:
    """How far one taker has come."""

    def __init__(self, taker: Taker, wanted: Callable[[], bool] = lambda: True) -> None:
        self.wanted = wanted
        self._taker = taker
        self._followers: dict[str, Follower] = {}
        self._owed = False
        self.trouble = ""
        self.bad: dict[str, str] = {}
        self.done: set[str] = set()

    @property
    def name(self) -> str:
        """Whose it is."""
        return self._taker.name

    def finished(self, name: str) -> set[Path]:
        """The files of a journal that it does not need any more."""
        known = self._followers.get(name)
        return set(known.finished) if known is not None and not self._owed else set()

    def drop(self, name: str, unlinked: Iterable[Path]) -> None:
        """These files are gone."""
        known = self._followers.get(name)
        if known is None:
            return
        for path in unlinked:
            with contextlib.suppress(ValueError):
                known.finished.remove(path)

    def gone(self, name: str) -> None:
        """All of a journal is gone."""
        self._taker.gone(name)

    async def step(self, names: Sequence[str], directory: Path) -> bool:
        """Take what is new; whether there was anything."""
        if not self.wanted():
            self.done.clear()
            self._followers.clear()
            return False
        self.done.intersection_update(names)
        self.bad = {name: why for name, why in self.bad.items() if name in names}
        found = [await self._look(name, directory / name) for name in names if name not in self.done]
        return any(found)

    async def _look(self, name: str, directory: Path) -> bool:
        """Take what is new in one journal: whatever is wrong with it, the others go on."""
        try:
            entries, ended = await self._take(name, directory)
        except Exception as error:  # noqa: BLE001 - the fleet must not depend on its records
            self._note_bad(name, str(error) or type(error).__name__)
            return False
        self.bad.pop(name, None)
        if entries or ended:
            await self._keep()
        if ended:
            self.done.add(name)
            del self._followers[name]
        return entries

    async def _take(self, name: str, directory: Path) -> tuple[bool, bool]:
        """Whether there was anything, and whether that was all there will be."""
        if not (directory / LOCK).exists():
            raise FileNotFoundError(_NO_LOCK)
        follower = self._followers.setdefault(name, Follower(directory))
        entries = await asyncio.to_thread(follower.read)
        self._tell(follower)
        if entries:
            self._taker.take(name, entries)
        if follower.ended:
            self._taker.end(name)
        return bool(entries), follower.ended

    def _note_bad(self, name: str, why: str) -> None:
        if self.bad.get(name) != why:
            _log.error("a journal cannot be read, and is left as it is", taker=self._taker.name, journal=name, why=why)
        self.bad[name] = why

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


def _lives(hidden: Path) -> bool:
    """Whether a process still makes its journal; one that has come no further than this has no lock."""
    return (hidden / LOCK).exists() and is_held(hidden)


def _names(directory: Path) -> list[str]:
    if not directory.exists():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
