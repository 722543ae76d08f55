"""Tells a collector of traces what became of requests, from the gateways' journals: requests pay nothing for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

from tuneplex.control.spans import Span, Told, spans
from tuneplex.journal import Finished, Numbered, Replay
from tuneplex.types import FleetSpec

__all__ = ["Sends", "Tracing"]

_MOST = 20_000  # spans that may wait for the collector
_AT_ONCE = 500
_PAUSE_S = 0.2
_BEFORE_S = 60.0
_log = logging.getLogger(__name__)


class Sends(Protocol):
    """A collector; `otlp.Collector` is the real one."""

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; whether it has them."""

    def close(self) -> None:
        """Send nothing more."""


def _collector(url: str, fleet: str) -> Sends:
    found: Sends = import_module("tuneplex.control.otlp").Collector(url, fleet)
    return found


class Tracing:
    """Makes spans of entries, see `journals.Taker`, and sends them.

    A control that is started anew reads journals again from their beginning, so what was over a minute before is left
    out; what is told twice within that has the same ids.

    Args:
        spec: The fleet as it is now.
        collector: Makes a collector from its URL and the fleet's name.
        wall: Unix time.

    Attributes:
        dropped: Spans that the collector has not got.
    """

    name = "traces"

    def __init__(
        self,
        spec: Callable[[], FleetSpec],
        collector: Callable[[str, str], Sends] = _collector,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.dropped = 0
        self._spec = spec
        self._make = collector
        self._since = wall() - _BEFORE_S
        self._replays: dict[str, Replay] = {}
        self._spans: deque[Span] = deque()
        self._known: tuple[str, Sends | None] = "", None
        self._away = False

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Take the next entries of a journal."""
        spec = self._spec()
        if not spec.telemetry.traces:
            self._replays.clear()
            return
        told = Told.of(spec)
        replay = self._replays.setdefault(journal, Replay(journal))
        for one in entries:
            self._note(replay.take(one.number, one.entry), told)

    def end(self, journal: str) -> None:
        """The journal's process has ended."""
        replay, told = self._replays.pop(journal, None), Told.of(self._spec())
        for one in replay.abandon() if replay is not None else ():
            self._note(one, told)

    async def keep(self) -> None:
        """Nothing: what a collector does not get is lost, and no journal grows for it."""

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self.send()
            await asyncio.sleep(_PAUSE_S)

    async def send(self) -> None:
        """Send all that there is now."""
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(_AT_ONCE, len(self._spans)))]
            arrived = await asyncio.to_thread(self._deliver, batch)
            if not arrived:
                self.dropped += len(batch)
            self._tell(arrived=arrived)

    def _note(self, one: Finished | None, told: Told) -> None:
        if one is None or one.closed < self._since:
            return
        for span in spans(one, told):
            if len(self._spans) < _MOST:
                self._spans.append(span)
            else:
                self.dropped += 1

    def _deliver(self, batch: Sequence[Span]) -> bool:
        """In a thread; the collector is made anew when the fleet file names another one."""
        spec = self._spec()
        url, collector = self._known
        if url != spec.telemetry.traces or collector is None:
            if collector is not None:
                collector.close()
            self._known = "", None
            if not spec.telemetry.traces:
                return False
            try:
                collector = self._make(spec.telemetry.traces, spec.name)
            except ImportError:
                return False
            self._known = spec.telemetry.traces, collector
        return collector.send(batch)

    def _tell(self, *, arrived: bool) -> None:
        """Say once that spans are lost, and once that they are not any more."""
        if not arrived and not self._away:
            _log.warning("the collector of traces (%s) takes no spans; they are dropped", self._spec().telemetry.traces)
        elif arrived and self._away:
            _log.info("the collector of traces takes spans again; %d were dropped until now", self.dropped)
        self._away = not arrived
