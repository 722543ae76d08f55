"""Looks after one replica: asks it how it does, changes its adapters, remembers the last answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import msgspec

from tuneplex.control.actions import Way
from tuneplex.control.seen import Hold, Limits, LoadFailure, Seen
from tuneplex.engines.driver import Driver, EngineMetrics, EngineModel, EngineServer
from tuneplex.errors import EngineError, EngineTimeout
from tuneplex.launchers.launcher import Launched
from tuneplex.launchers.logfile import read_tail
from tuneplex.log import get_logger
from tuneplex.records import EngineCounters
from tuneplex.types import AdapterVersion, Residency, incarnation
from tuneplex.units import format_duration

__all__ = ["Watch"]

_log = get_logger(__name__)

_STARTING_PAUSE_S = 0.5
_READY_PAUSE_S = 2.0
_FIGURES_EVERY = 2  # looks
_LAST_LINES = 12


class Watch:
    """One replica under observation. `run` looks until cancelled.

    Args:
        record: The replica.
        driver: For its kind of engine.
        changed: Called whenever something worth a decision was learned.
        limits: How patient to be.
        now: Control's own time.
        wall: Unix time, as the gateways have it: by it the engine's counters are held against requests.

    Attributes:
        started: When it was launched, by that time.
        ended: When it ended; None while it lives.
        looked: Set after the first look that found something out; a busy engine that does not answer in time did not.
        draining_since: See `Seen`; decided elsewhere, remembered here.
        drain_generation: The first view that tells gateways so, once there is one.
        stopping: See `Seen`.
        drain_s: See `Seen`; of a pool that is gone it stays as it was.
        unlisted: See `Seen`.
    """

    def __init__(
        self,
        record: Launched,
        driver: Driver,
        changed: Callable[[], None],
        *,
        limits: Limits,
        now: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._record = record
        self._driver = driver
        self._changed = changed
        self._limits = limits
        self._now = now
        self._wall = wall
        self._server = EngineServer(record.endpoint, record.secret)
        self._answered = False
        self._silent_since: float | None = None
        self._slow = False
        self._trouble = ""
        self._models: tuple[EngineModel, ...] = ()
        self._metrics: EngineMetrics | None = None
        self._first: tuple[float, EngineMetrics] | None = None
        self._asked, self._resets = 0.0, 0
        self._residency: Residency | None = None
        self._notice = ""
        self._phase = ""
        self._words = ""
        self._changing: set[str] = set()
        self._failures: dict[str, LoadFailure] = {}
        self._loaded_here: set[str] = set()
        self.looked = asyncio.Event()
        self.started = min(record.started, now())
        self.ended = None if record.ended is None else min(record.ended, now())
        self.drain_s = record.drain_s
        self.draining_since: float | None = None
        self.drain_generation: int | None = None
        self.stopping = False
        self.unlisted: dict[str, float] = {}

    async def run(self) -> None:
        """Look, again and again, until cancelled; then close the connections."""
        looks = 0
        try:
            while True:
                before = self.seen(self._record)
                await self._look(with_figures=looks % _FIGURES_EVERY == 0)
                looks += 1
                if self.seen(self._record) != before:
                    self._changed()
                await asyncio.sleep(_READY_PAUSE_S if self._answered else _STARTING_PAUSE_S)
        finally:
            await self._server.aclose()

    def seen(self, record: Launched, *, hold: Hold | None = None, drained: bool = False) -> Seen:
        """What is known of the replica now."""
        return Seen(
            launched=msgspec.structs.replace(record, started=self.started, ended=self.ended),
            answered=self._answered,
            silent_since=self._silent_since,
            slow=self._slow,
            models=self._models,
            draining_since=self.draining_since,
            hold=hold,
            drain_s=self.drain_s,
            drained=drained,
            stopping=self.stopping,
            changing=frozenset(self._changing),
            failures=dict(self._failures),
            unlisted={name: since for name, since in self.unlisted.items() if self._may_unload(name)},
            loads_adapters=self._driver.loads_adapters,
            routes=self._driver.routes,
            phase=self._phase,
            words=self._words,
            metrics=self._metrics,
            residency=self._residency,
            notice=self._notice,
        )

    def counted(self) -> EngineCounters | None:
        """What the engine says that it has done since it was asked first; None if it tells nothing."""
        record, first, last = self._record, self._first, self._metrics
        if first is None or last is None:
            return None
        return EngineCounters(
            engine=incarnation(record.replica, self.started) + (f".{self._resets}" if self._resets else ""),
            replica=record.replica,
            pool=record.pool,
            since=int(first[0] * 1000),
            at=int(self._asked * 1000),
            first_prompt=first[1].prompt_tokens,
            first_completion=first[1].generation_tokens,
            prompt=last.prompt_tokens,
            completion=last.generation_tokens,
        )

    def note_end(self) -> None:
        """The replica has ended: keep when, by the clock that nobody sets, and its last words."""
        if self.ended is None:
            self.ended = self._now()
        lines = [line for line in read_tail(Path(self._record.log)).splitlines() if line.strip()]
        self._words = "\n".join(lines[-_LAST_LINES:])

    async def load(self, version: AdapterVersion) -> None:
        """Load an adapter; a failure is remembered, not raised."""
        with self._change(version.id):
            try:
                await self._driver.load(self._server, version)
            except EngineError as error:
                self._note_failure(version.id, str(error))
                return
            self._loaded_here.add(version.id)
            self._failures.pop(version.id, None)
            await self._ask_adapters()

    async def unload(self, name: str) -> None:
        """Unload an adapter; a failure is only logged, and tried again later."""
        with self._change(name):
            try:
                await self._driver.unload(self._server, name)
                self._loaded_here.discard(name)
                self.unlisted.pop(name, None)
            except EngineError as error:
                self.unlisted[name] = self._now()
                _log.warning("does not unload an adapter", replica=self._record.replica, adapter=name, error=error)
            await self._ask_adapters()

    async def move(self, way: Way, name: str) -> None:
        """Let the engine move an adapter; a failure is only logged, for nothing is lost by it."""
        with self._change(name):
            try:
                await self._driver.move(self._server, way, name)
            except EngineError as error:
                _log.info("does not move an adapter", replica=self._record.replica, way=way, adapter=name, error=error)
            await self._ask_adapters()

    def forgive(self) -> None:
        """Forget which adapters could not be loaded, so that they are tried again at once."""
        self._failures.clear()

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)
            self._changed()

    def _note_failure(self, name: str, words: str) -> None:
        count = self._failures[name].count + 1 if name in self._failures else 1
        self._failures[name] = LoadFailure(count, self._now(), words)
        _log.warning("does not load an adapter", replica=self._record.replica, adapter=name, error=words)

    def _may_unload(self, name: str) -> bool:
        """In an engine that others may use, too, only what we loaded ourselves is ours to unload."""
        return self._record.launcher != "external" or name in self._loaded_here

    async def _look(self, *, with_figures: bool) -> None:
        if not self._answered and self._record.log:
            self._phase = self._driver.phase(read_tail(Path(self._record.log), since=self._record.started))
        try:
            await self._ask(self._driver.check(self._server, self._limits.silent_s))
            self._silent_since = None
            self._models = await self._server.models(timeout_s=self._limits.silent_s)
            self._answered = True
        except EngineError as error:
            self._note_silence(self._now(), str(error), slow=isinstance(error, EngineTimeout))
            return
        if self._trouble:
            _log.info("answers again", replica=self._record.replica)
        self._trouble, self._slow = "", False
        self.looked.set()
        if with_figures:
            await self._ask_figures()

    async def _ask(self, question: Coroutine[None, None, None]) -> None:
        """Wait for the answer patiently: a busy engine takes its time. That it does so is told meanwhile."""
        began, asked = self._now(), asyncio.create_task(question)
        try:
            done, _pending = await asyncio.wait({asked}, timeout=self._limits.slow_s)
            if not done:
                words = f"no answer to a health check within {format_duration(self._limits.slow_s)} yet"
                self._note_silence(began, words, slow=True)
                self._changed()
            await asked
        finally:
            asked.cancel()

    def _note_silence(self, since: float, words: str, *, slow: bool) -> None:
        """It does not answer. A reason is logged once, however often it is met; a start is no reason."""
        if not slow:
            self.looked.set()
        if self._silent_since is None:
            self._silent_since = since
        self._slow, self._words = slow, words
        starting = not self._answered and self._record.launcher != "external"
        if words != self._trouble and not starting:
            self._trouble = words
            _log.warning("does not answer", replica=self._record.replica, why=words)

    async def _ask_adapters(self) -> None:
        """After a change. What fails is asked again by the next look, which draws the conclusions."""
        with contextlib.suppress(EngineError):
            await self._ask_residency()
        with contextlib.suppress(EngineError):
            self._models = await self._server.models()

    async def _ask_figures(self) -> None:
        with contextlib.suppress(EngineError):
            asked, before = self._wall(), self._metrics
            self._metrics = await self._driver.metrics(self._server)
            if self._metrics is not None:
                self._note_figures(asked, before, self._metrics)
            await self._ask_residency()

    def _note_figures(self, asked: float, before: EngineMetrics | None, now: EngineMetrics) -> None:
        """Of an engine that others may start again, this is seen by its counters alone."""
        first = self._first or self._beginning(asked, now)
        if before is not None and _went_back(before, now):
            first, self._resets = (self._asked, EngineMetrics()), self._resets + 1
        self._asked, self._first = asked, first

    def _beginning(self, asked: float, metrics: EngineMetrics) -> tuple[float, EngineMetrics]:
        """What the engine had counted before anything of this fleet, and when; one that was started here: nothing."""
        return (asked, metrics) if self._record.launcher == "external" else (self.started, EngineMetrics())

    async def _ask_residency(self) -> None:
        self._residency = await self._driver.residency(self._server)
        self._notice = "" if self._residency else self._driver.without_residency


def _went_back(before: EngineMetrics, now: EngineMetrics) -> bool:
    return now.prompt_tokens < before.prompt_tokens or now.generation_tokens < before.generation_tokens
