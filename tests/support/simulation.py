"""Gateways with queues before replicas, simulated: time is a number, and a request takes as long as its work says."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from tuneplex.policy import FairQueue, Slots
from tuneplex.policy.turns import turns
from tuneplex.types import GatewayReport, Replica, Turns

__all__ = ["Job", "Simulation", "Source"]

BASE = "base"
_SOON_S = 1e-6
_TURNS_DELAY_S = 0.3  # from reports to what gateways go by


@dataclass
class Source:
    """Somebody who always has so many requests in the system.

    Attributes:
        tenant: Who pays.
        sizes: Work that is expected, and work that it really is, of the next request.
        depth: Requests that wait or are served at a time.
        gateway: Where they arrive.
        weight: Of the tenant.
        share: Of the flow inside its tenant.
        version: With what they are to be answered.
        starts: When it begins.
        ends: When it sends no more.
        only: The replica that alone can serve it; empty for all.
    """

    tenant: str
    sizes: Callable[[random.Random], tuple[float, float]]
    depth: int
    gateway: int = 0
    weight: float = 1
    share: float = 1
    version: str = BASE
    starts: float = 0.0
    ends: float = float("inf")
    only: str = ""

    @property
    def flow(self) -> tuple[str, float]:
        """As the gateway's flows are: by model and priority."""
        return self.version, self.share


@dataclass(eq=False)
class Job:
    """One request."""

    source: Source
    expected: float
    real: float
    arrived: float
    began: float = -1.0
    replica: str = ""


class _Gateway:
    def __init__(self, index: int, quantum_s: float) -> None:
        self.index = index
        self.queue: FairQueue[Job] = FairQueue()
        self.slots = Slots(quantum_s)
        self.outstanding: defaultdict[str, int] = defaultdict(int)
        self.running: dict[Job, None] = {}
        self.waiting: defaultdict[str, int] = defaultdict(int)
        self.jobs: dict[Job, None] = {}
        self.places: dict[str, int] = {}
        self.again = 0.0

    def report(self, replicas: dict[str, Replica]) -> GatewayReport:
        demand: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for job in self.running:
            demand[job.replica][job.source.tenant] += 1
        for job in self.jobs:
            possible = [job.source.only] if job.source.only else list(replicas)
            for name in possible:
                demand[name][job.source.tenant] += 1 / len(possible)
        return GatewayReport(
            self.index,
            0,
            0,
            demand={name: dict(tenants) for name, tenants in demand.items()},
            busy={name: dict(counts) for name, counts in self.slots.busy.items()},
            closing=self.slots.closing,
        )


class Simulation:
    """Time passes in `run`.

    Args:
        replicas: What serves; each place does one unit of work a second.
        sources: Who sends.
        gateways: How many gateways there are.
        seed: Of all chance.
        quantum_s: As `Slots` has it.

    Attributes:
        now: The time.
        served: Work by tenant that was really done since `forget`, as it was done: also of requests that still run.
        by_flow: The same by tenant and flow.
        jobs: All that began since `forget`.
    """

    def __init__(
        self,
        replicas: list[Replica],
        sources: list[Source],
        *,
        gateways: int = 1,
        seed: int = 0,
        quantum_s: float = 1.0,
    ) -> None:
        self.now = 0.0
        self.jobs: list[Job] = []
        self._replicas = {replica.name: replica for replica in replicas}
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._gateways = [_Gateway(index, quantum_s) for index in range(gateways)]
        self._since = 0.0
        self._done: list[Job] = []
        self._weights = {source.tenant: source.weight for source in sources}
        for gateway in self._gateways:
            gateway.slots.update(replicas, BASE)
            gateway.places = {one.name: max(1, (one.concurrent or 0) // gateways) for one in replicas}
        for source in sources:
            self.at(source.starts, lambda source=source: self.send(source))  # type: ignore[misc]
        if gateways > 1:
            self.at(1.0, self._divide)

    # --- what tests use

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Let something happen at this time."""
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def forget(self) -> None:
        """Measure from now on."""
        self._since = self.now
        self.jobs, self._done = [], []

    @property
    def served(self) -> dict[str, float]:
        """By tenant."""
        found: defaultdict[str, float] = defaultdict(float)
        for (tenant, _), work in self.by_flow.items():
            found[tenant] += work
        return dict(found)

    @property
    def by_flow(self) -> dict[tuple[str, tuple[str, float]], float]:
        """By tenant and flow."""
        found: defaultdict[tuple[str, tuple[str, float]], float] = defaultdict(float)
        running = (job for gateway in self._gateways for job in gateway.running)
        for job in (*self._done, *running):
            ended = min(self.now, job.began + job.real)
            found[job.source.tenant, job.source.flow] += ended - max(job.began, self._since)
        return dict(found)

    @property
    def waiting(self) -> list[Job]:
        """All that wait now."""
        return [job for gateway in self._gateways for job in gateway.jobs]

    def send(self, source: Source) -> None:
        """Let it begin now."""
        for _ in range(source.depth):
            self._arrive(source)

    # --- how it works

    def _arrive(self, source: Source) -> None:
        if self.now >= source.ends:
            return
        gateway = self._gateways[source.gateway]
        job = Job(source, *source.sizes(self._random), self.now)
        gateway.queue.add(
            job, tenant=source.tenant, weight=source.weight, flow=source.flow, share=source.share, work=job.expected
        )
        gateway.jobs[job] = None
        gateway.waiting[source.version] += 1
        self._serve(gateway)

    def _serve(self, gateway: _Gateway) -> None:
        while (job := gateway.queue.take(lambda job: self._choose(gateway, job) is not None)) is not None:
            replica = self._choose(gateway, job)
            assert replica is not None
            self._begin(gateway, job, replica)
        waiting = {version for version, number in gateway.waiting.items() if number}
        again = gateway.slots.settle(waiting, self.now)
        if again is not None and not self.now < gateway.again <= again:
            gateway.again = max(again, self.now + _SOON_S)
            self.at(gateway.again, lambda: self._serve(gateway))

    def _choose(self, gateway: _Gateway, job: Job) -> Replica | None:
        possible = (
            replica
            for name, replica in self._replicas.items()
            if job.source.only in {"", name}
            and gateway.outstanding[name] < gateway.places[name]
            and self._running(name) < (replica.concurrent or 0)
            and gateway.slots.fits(replica, job.source.version)
        )
        return min(possible, key=lambda replica: gateway.outstanding[replica.name], default=None)

    def _running(self, replica: str) -> int:
        return sum(gateway.outstanding[replica] for gateway in self._gateways)

    def _begin(self, gateway: _Gateway, job: Job, replica: Replica) -> None:
        source = job.source
        job.began, job.replica = self.now, replica.name
        del gateway.jobs[job]
        gateway.waiting[source.version] -= 1
        gateway.running[job] = None
        gateway.outstanding[replica.name] += 1
        gateway.slots.began(
            replica.name, source.version, tenant=source.tenant, weight=source.weight, work=job.expected, now=self.now
        )
        self.jobs.append(job)
        self.at(self.now + job.real, lambda: self._end(gateway, job))

    def _end(self, gateway: _Gateway, job: Job) -> None:
        source = job.source
        del gateway.running[job]
        self._done.append(job)
        gateway.outstanding[job.replica] -= 1
        gateway.slots.ended(job.replica, source.version)
        gateway.queue.correct(
            tenant=source.tenant,
            flow=source.flow,
            by=job.real - job.expected,
            weight=source.weight,
            share=source.share,
        )
        self._arrive(source)
        for other in self._gateways:  # a place that is over in one may be free in another
            self._serve(other)

    def _divide(self) -> None:
        reports = [gateway.report(self._replicas) for gateway in self._gateways]
        found = turns(self._replicas.values(), range(len(self._gateways)), reports, self._weights)
        self.at(self.now + _TURNS_DELAY_S, lambda: self._tell(found))
        self.at(self.now + 1.0, self._divide)

    def _tell(self, found: Turns) -> None:
        for gateway in self._gateways:
            gateway.places = found.places[gateway.index]
            gateway.queue.reweigh(found.weights[gateway.index])
            gateway.slots.hear(found.elsewhere[gateway.index], found.closing, self.now)
        for gateway in self._gateways:
            self._serve(gateway)
