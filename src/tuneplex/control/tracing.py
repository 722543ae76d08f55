"""Tells a collector of traces what became of requests, from the gateways' journals: requests pay nothing for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

from tuneplex.control.spans import Span, Told, spans
from tuneplex.journal import Finished, Numbered, Replay
from tuneplex.log import get_logger
from tuneplex.types import FleetSpec

__all__ = ["Sends", "Tracing"]

_MOST = 20_000  # spans that may wait for the collector
_AT_ONCE = 500
_PAUSE_S = 0.2
_BEFORE_S = 60.0
_log = get_logger(__name__)


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
        self._wall = wall
        self._since = wall() - _BEFORE_S
        self._replays: dict[str, Replay] = {}
        self._spans: deque[Span] = deque()
        self._known: tuple[str, Sends | None] = "", None
        self._away = False

    @property
    def wanted(self) -> bool:
        """Whether there is a collector to be told."""
        return bool(self._spec().telemetry.traces)

    def take(self, journal: str, entries: Sequence[Numbered]) -> None:
        """Take the next entries of a journal."""
        told, replay = Told.of(self._spec()), self._replays.setdefault(journal, Replay(journal))
        for one in entries:
            self._note(replay.take(one.number, one.entry), told)

    def end(self, journal: str) -> None:
        """The journal's process has ended."""
        replay, told = self._replays.pop(journal, None), Told.of(self._spec())
        for one in replay.abandon() if replay is not None else ():
            self._note(one, told)

    def gone(self, journal: str) -> None:
        """The journal has been removed."""
        del journal

    async def keep(self) -> None:
        """Nothing: what a collector does not get is lost, and no journal grows for it."""

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            if self.wanted:
                await self.send()
            else:
                self._rest()
            await asyncio.sleep(_PAUSE_S)

    def _rest(self) -> None:
        """Nobody is to be told now: of what is under way nothing is known when somebody is again."""
        self._spans.clear()
        self._replays.clear()
        self._since = self._wall()

    async def send(self) -> None:
        """Send all that there is now."""
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(_AT_ONCE, len(self._spans)))]
            trouble = await asyncio.to_thread(self._deliver, batch)
            if trouble:
                self.dropped += len(batch)
            self._tell(trouble)

    def _note(self, one: Finished | None, told: Told) -> None:
        if one is None or one.closed < self._since:
            return
        for span in spans(one, told):
            if len(self._spans) < _MOST:
                self._spans.append(span)
            else:
                self.dropped += 1

    def _deliver(self, batch: Sequence[Span]) -> str:
        """In a thread; why they could not be delivered, or nothing."""
        try:
            collector = self._collector()
        except ImportError:
            return 'OpenTelemetry is not installed: pip install "tuneplex[otel]"'
        return "" if collector.send(batch) else f"the collector ({self._known[0]}) takes none"

    def _collector(self) -> Sends:
        """Made anew when the fleet file names another one."""
        spec, (url, collector) = self._spec(), self._known
        if collector is not None and url == spec.telemetry.traces:
            return collector
        if collector is not None:
            collector.close()
        self._known = "", None
        made = self._make(spec.telemetry.traces, spec.name)
        self._known = spec.telemetry.traces, made
        return made

    def _tell(self, trouble: str) -> None:
        """Say once that spans are lost, and once that they are not any more."""
        if trouble and not self._away:
            _log.warning("traces are lost", why=trouble)
        elif self._away and not trouble:
            _log.info("traces are told again", lost_spans=self.dropped)
        self._away = bool(trouble)
