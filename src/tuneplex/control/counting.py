"""Keeps in the store what engines say that they have read and written, now and then and when one of them ends."""

from __future__ import annotations

import asyncio
import contextlib

from tuneplex.control.controller import Controller
from tuneplex.control.registry import Registry
from tuneplex.errors import StoreError
from tuneplex.log import get_logger
from tuneplex.records import EngineCounters

__all__ = ["Counting"]

_log = get_logger(__name__)
_LOOK_S = 1.0
_KEEP_S = 30.0
_LAST_S = 2.0


class Counting:
    """Looks at the engines' counters once a second. A database that is down delays what is kept, and nothing else.

    Args:
        controller: Knows what the engines have said last.
        registry: Reaches the store.
        look_s: Between two looks.
        keep_s: The longest time between two times that something is kept.
    """

    def __init__(
        self, controller: Controller, registry: Registry, *, look_s: float = _LOOK_S, keep_s: float = _KEEP_S
    ) -> None:
        self._controller = controller
        self._registry = registry
        self._look_s = look_s
        self._keep_s = keep_s
        self._present: set[str] = set()
        self._living: set[str] = set()
        self._told: dict[str, EngineCounters] = {}
        self._kept: dict[str, EngineCounters] = {}

    async def run(self) -> None:
        """Look and keep until cancelled; then the last numbers are kept."""
        loop = asyncio.get_running_loop()
        due = 0.0
        try:
            while True:
                if self._look() or loop.time() >= due:
                    await self._keep()
                    due = loop.time() + self._keep_s
                await asyncio.sleep(self._look_s)
        finally:
            self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._keep()

    def _look(self) -> bool:
        """Take in what the engines have said; whether one of them has come or gone."""
        before, told = self._living, self._controller.counted()
        self._told |= {one.engine: one for one in told}
        self._present = {one.engine for one in told}
        ended = {replica.name for replica in self._controller.situation().seen if not replica.alive}
        self._living = {one.engine for one in told if one.replica not in ended}
        return self._living != before

    async def _keep(self) -> None:
        fresh = [one for name, one in self._told.items() if self._kept.get(name) != one]
        fleet = self._controller.spec.name
        if not fresh:
            return
        try:
            await self._registry.read(lambda store: store.keep_counters(fleet, fresh))
        except StoreError as error:
            _log.debug("the engines' counters have to wait", why=str(error))
            return
        self._kept |= {one.engine: one for one in fresh}
        self._forget()

    def _forget(self) -> None:
        """Of engines that are gone, once all of it is kept."""
        over = [name for name, one in self._told.items() if name not in self._present and self._kept.get(name) == one]
        for name in over:
            del self._told[name], self._kept[name]
