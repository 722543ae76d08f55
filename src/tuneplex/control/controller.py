"""The loop: look at the replicas, tell the gateways, decide, act. Decisions are elsewhere, and pure."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from tuneplex.control.actions import Action, Drain, Forget, Keep, Launch, Load, Move, Stop, Unload
from tuneplex.control.clock import Clock
from tuneplex.control.decide import Situation, decide, failures, gave_up
from tuneplex.control.figures import metrics_page
from tuneplex.control.holds import Holds, hold_key
from tuneplex.control.ledger import Ledger
from tuneplex.control.report import Surroundings, fleet_status
from tuneplex.control.seen import Hold, Limits, Seen
from tuneplex.control.tally import Tally
from tuneplex.control.view import Outlook, fleet_view, unmentioned
from tuneplex.control.watch import Watch
from tuneplex.engines.driver import Driver, driver_for
from tuneplex.errors import EngineError
from tuneplex.feed import Publisher
from tuneplex.launchers.launcher import Launched, Launcher, Order
from tuneplex.log import get_logger
from tuneplex.records import EngineCounters
from tuneplex.types import Base, FleetSpec, FleetView, GatewayReport, ReplicaState, Status

__all__ = ["Controller", "Follower"]

_PAUSE_S = 1.0
_FIRST_LOOK_S = 30.0
_FIRST_SHARES_S = 8.0
_RETRY_LAUNCH_S = 5.0


class Follower(Protocol):
    """Somebody else whom the gateways' reports concern."""

    def heard(self, report: GatewayReport) -> None:
        """Take in a report."""

    async def settled(self) -> None:
        """Return once gateways know of it what they should know before they serve."""


class Controller:
    """Brings a fleet to what its description says, and keeps it there.

    Nothing that matters lives only here: a controller that starts anew finds the replicas at its launchers, asks them
    what they have, and goes on.

    Args:
        spec: What should be.
        applied_at: When that was applied, Unix time.
        url: Where clients call.
        started: When the fleet was started, Unix time.
        launchers: By the name that pools use.
        limits: How patient to be.
        drivers: By the kind of engine.
        holds: Which replicas somebody has told to take no requests.
        clock: Its time.
        tally: Of gateways that have ended.
        gateways: Tells which live, or should; those of the description, if nobody knows better.
    """

    def __init__(
        self,
        spec: FleetSpec,
        *,
        applied_at: float,
        url: str,
        started: float,
        launchers: Mapping[str, Launcher],
        limits: Limits | None = None,
        drivers: Callable[[str], Driver] = driver_for,
        holds: Holds | None = None,
        clock: Clock | None = None,
        tally: Tally | None = None,
        gateways: Callable[[], tuple[int, ...]] | None = None,
    ) -> None:
        self.spec = spec
        self.publisher = Publisher(self._on_report, self._on_gone)
        self._url = url
        self._started = started
        self._launchers = launchers
        self._limits = limits or Limits()
        self._drivers = drivers
        self._holds = holds or Holds()
        self._clock = clock or Clock()
        # Of a file that the clock was set back after, no failure would ever be younger, and none would be waited for.
        self._applied_at = min(applied_at, self._clock.now())
        self._watches: dict[tuple[str, str], tuple[Watch, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._view = FleetView(generation=int(time.time()) * 1000)  # above all that an earlier control has published
        self._since: dict[str, tuple[ReplicaState, float]] = {}
        self._troubles: dict[str, tuple[float, str]] = {}
        self._starts: dict[str, float] = {}
        self._tokenizer = _tokenizer(spec.base)
        self._tally = tally or Tally()
        self._ledger = Ledger()
        self._gateways = gateways or (lambda: tuple(range(self.spec.listen.gateways)))
        self._followers: list[Follower] = []

    @property
    def launcher_names(self) -> frozenset[str]:
        """What a pool's `launcher` can be here."""
        return frozenset(self._launchers)

    @property
    def gateways(self) -> tuple[int, ...]:
        """The indexes of those that live, or should: while one is replaced, of both."""
        return self._gateways()

    @property
    def view(self) -> FleetView:
        """What gateways were told last."""
        return self._view

    def follow(self, follower: Follower) -> None:
        """From now on tell this one of every report, and let it settle before gateways are told of the fleet."""
        self._followers.append(follower)

    async def run(self) -> None:
        """Observe, decide and act until cancelled; the engines go on."""
        try:
            for launcher in self._launchers.values():
                self._start(self._pass_on(launcher.changed))
            await self._first_look()
            while True:
                self._wake.clear()
                await self._step()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_S):
                        await self._wake.wait()
        finally:
            tasks = [*self._tasks, *(task for _watch, task in self._watches.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def follow_versions(self, spec: FleetSpec) -> None:
        """Aim at a description that differs in the versions of adapters; what was given up stays so."""
        self.spec = spec
        self._wake.set()

    def apply(self, spec: FleetSpec) -> None:
        """Aim at another description. What was given up is tried again."""
        self.spec = spec
        self._tokenizer = _tokenizer(spec.base)
        self._applied_at = self._clock.now()
        self._troubles.clear()
        for watch, _task in self._watches.values():
            watch.forgive()
        self._wake.set()

    def hold(self, record: Launched, hold: Hold | None) -> None:
        """From now on let a replica take no requests; or with None let it take them again.

        Raises:
            OSError: This cannot be kept for the next control; nothing has changed.
        """
        self._holds.keep(record, hold)
        self._wake.set()

    def now(self) -> float:
        """Unix time, as long as nobody has set the clock since control started."""
        return self._clock.now()

    def status(self) -> Status:
        """The fleet as people see it."""
        situation = self.situation()
        around = Surroundings(
            url=self._url,
            started=self._started,
            reports=self.publisher.reports,
            gateways=self.gateways,
            since={name: since for name, (_state, since) in self._since.items()},
            troubles={pool: words for pool, (_at, words) in self._troubles.items()},
            ledger=self._ledger.figures(situation),
        )
        return fleet_status(situation, around)

    def metrics(self) -> bytes:
        """The fleet's Prometheus page."""
        situation, reports = self.situation(), self.publisher.reports
        return metrics_page(situation, reports, self._tally.total(reports), self._ledger.figures(situation))

    def counted(self) -> list[EngineCounters]:
        """What the engines say that they have done, also those that have just ended."""
        found = (watch.counted() for watch, _task in self._watches.values())
        return [one for one in found if one is not None]

    def situation(self) -> Situation:
        """All that is known now."""
        gpus = (launcher.free_gpus for launcher in self._launchers.values())
        return Situation(
            spec=self.spec,
            seen=tuple(self._seen(record) for record in self._records()),
            now=self._clock.now(),
            applied_at=self._applied_at,
            free_gpus=sum(count for count in gpus if count is not None),
            limits=self._limits,
        )

    def _records(self) -> list[Launched]:
        return [record for launcher in self._launchers.values() for record in launcher.launched]

    def _seen(self, record: Launched) -> Seen:
        found = self._watches.get(_key(record))
        hold = self._holds.of(record)
        if found is None:
            return Seen(record, hold=hold)
        return found[0].seen(record, hold=hold, drained=self._is_drained(record, found[0]))

    def _is_drained(self, record: Launched, watch: Watch) -> bool:
        """Every gateway knows that the replica goes away, and waits for nothing from it."""
        generation, reports = watch.drain_generation, self.publisher.reports
        return (
            generation is not None
            and len(reports) == self.publisher.connected
            # A number above ours is of a control from before the clock was set back.
            and all(generation <= report.generation <= self._view.generation for report in reports)
            and not any(report.outstanding.get(record.replica) for report in reports)
        )

    async def _first_look(self) -> None:
        """Before anything is published or decided, ask the replicas that an earlier control has left.

        Until then gateways go on with the view they have, so there is time for a replica that is busy.
        """
        self._sync_watches()
        looks = [watch.looked.wait() for watch, task in self._watches.values() if not task.cancelling()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK_S):
                await asyncio.gather(*looks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_SHARES_S):
                await asyncio.gather(*(follower.settled() for follower in self._followers))

    async def _step(self) -> None:
        self._sync_watches()
        situation = self.situation()
        self._note_states(situation)
        await self._publish(situation)
        self._note_drift(situation)
        for action in (*decide(situation), *self._ledger.moves(situation)):
            await self._act(action, situation)

    def _note_drift(self, situation: Situation) -> None:
        """What engines have otherwise than control had left it is told; `decide` repairs it."""
        for replica, kind, adapter in self._ledger.look(situation, self.publisher.reports):
            get_logger(__name__).warning("an adapter has drifted", replica=replica, adapter=adapter, kind=kind)

    def _sync_watches(self) -> None:
        """One watch for each replica that lives; one that ended keeps its watch, for its last words."""
        records = {_key(record): record for record in self._records()}
        drains = {pool.name: pool.drain_s for pool in self.spec.pools}
        for key in [key for key in self._watches if key not in records]:
            self._watches.pop(key)[1].cancel()
        for key, record in records.items():
            if key not in self._watches:
                driver = self._drivers(record.engine)
                watch = Watch(record, driver, self._wake.set, limits=self._limits, now=self._clock.now)
                self._watches[key] = watch, asyncio.create_task(watch.run())
            watch, task = self._watches[key]
            watch.drain_s = drains.get(record.pool, watch.drain_s)
            if record.ended is not None and not task.cancelling():
                task.cancel()
                watch.note_end()
        urls = {url for pool in self.spec.pools for url in pool.urls}
        self._holds.forget_others({*map(hold_key, records.values()), *urls})

    def _note_states(self, situation: Situation) -> None:
        """Remember since when each replica is in its state, and log every change."""
        before, self._since = self._since, {}
        for replica in situation.seen:
            state = situation.state(replica)
            known = before.get(replica.name)
            if known is not None and known[0] is state:
                self._since[replica.name] = known
                continue
            self._since[replica.name] = state, situation.now
            if known is not None and known[0] is ReplicaState.STARTING and state is ReplicaState.READY:
                self._starts[replica.launched.pool] = situation.now - replica.launched.started
            get_logger(__name__).info("a replica has another state", replica=replica.name, state=state.value)
            if gave_up(replica.launched, situation.applied_at, situation.limits):
                count = len(failures(replica.launched, situation.applied_at, situation.limits))
                get_logger(__name__).error("a replica is left alone", replica=replica.name, ended_times=count)

    async def _publish(self, situation: Situation) -> None:
        generation = self._view.generation
        outlook = Outlook(
            int(self._started),
            self._tokenizer,
            self._starts,
            self._troubles.keys(),
            ahead=self._clock.ahead,
            gateways=len(self.gateways),
        )
        view = fleet_view(situation, outlook, generation=generation)
        if view != self._view:
            self._view = msgspec.structs.replace(view, generation=generation + 1)
            await self.publisher.publish(self._view)
        for replica in situation.seen:
            self._note_published(replica, situation.now)

    def _note_published(self, replica: Seen, now: float) -> None:
        """Remember what gateways have been told about a replica: that it goes away, and what it should not serve."""
        watch, _task = self._watches[_key(replica.launched)]
        if not replica.drains:
            watch.drain_generation = None
        elif watch.drain_generation is None:
            watch.drain_generation = self._view.generation
        known = watch.unlisted
        watch.unlisted = {name: known.get(name, now) for name in unmentioned(self._view, replica)}

    async def _act(self, action: Action, situation: Situation) -> None:
        log = get_logger(__name__)
        match action:
            case Launch(order):
                await self._launch(order, situation.now)
            case Drain(replica, why):
                log.info("a replica takes no new requests", replica=replica, why=why)
                self._watch(replica, situation).draining_since = situation.now
                self._wake.set()
            case Keep(replica):
                self._watch(replica, situation).draining_since = None
                self._wake.set()
            case Stop(replica, why):
                log.info("a replica is stopped", replica=replica, why=why)
                self._watch(replica, situation).stopping = True
                await self._ask(self._launcher(replica, situation).stop(replica), replica)
            case Forget(replica):
                await self._ask(self._launcher(replica, situation).forget(replica), replica)
            case Load(replica, version):
                self._start(self._watch(replica, situation).load(version))
            case Unload(replica, name):
                self._start(self._watch(replica, situation).unload(name))
            case Move(replica, way, name):
                told = log.debug if way == "prefetch" else log.info  # that is daily business
                told("an adapter is moved", replica=replica, way=way, adapter=name)
                self._start(self._watch(replica, situation).move(way, name))

    async def _launch(self, order: Order, now: float) -> None:
        pool = order.pool
        tried, _words = self._troubles.get(pool.name, (0.0, ""))
        if now - tried < _RETRY_LAUNCH_S:
            return
        try:
            await self._launchers[pool.launcher].launch(order)
            self._troubles.pop(pool.name, None)
            self._holds.note_start(order.replica)
        except EngineError as error:
            self._troubles[pool.name] = now, str(error)
            get_logger(__name__).warning("cannot start a replica", replica=order.replica, error=error)

    async def _ask(self, wish: Coroutine[None, None, None], replica: str) -> None:
        try:
            await wish
        except EngineError as error:
            get_logger(__name__).warning("a launcher fails", replica=replica, error=error)

    def _watch(self, name: str, situation: Situation) -> Watch:
        return self._watches[_key(self._record(name, situation))][0]

    def _launcher(self, name: str, situation: Situation) -> Launcher:
        return self._launchers[self._record(name, situation).launcher]

    def _record(self, name: str, situation: Situation) -> Launched:
        return next(replica.launched for replica in situation.seen if replica.name == name)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            self._wake.set()

    def _on_report(self, report: GatewayReport) -> None:
        """For control a report matters at once only while something waits for gateways to let go of a replica."""
        for follower in self._followers:
            follower.heard(report)
        if any(watch.drain_generation is not None for watch, _task in self._watches.values()):
            self._wake.set()

    def _on_gone(self, report: GatewayReport) -> None:
        self._tally.add(report)


def _tokenizer(base: Base) -> str:
    """The path of its `tokenizer.json`; empty where there is none."""
    path = Path(base.path, "tokenizer.json")
    return str(path) if base.path and path.is_file() else ""


def _key(record: Launched) -> tuple[str, str]:
    """Each start of a replica has an endpoint of its own."""
    return record.replica, record.endpoint
