"""Shares limits among the gateways, and keeps count of each day's tokens. How shares move is in `policy`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from tuneplex.control.bodies import LimitUse
from tuneplex.control.controller import Controller
from tuneplex.control.days import DAY_S, Days
from tuneplex.control.registry import Registry
from tuneplex.control.subjects import limited, uses
from tuneplex.errors import StoreError
from tuneplex.identity import Access, Limits
from tuneplex.policy.lessor import Lessor
from tuneplex.types import FleetSpec, GatewayReport, Leases

__all__ = ["Leasing"]

_PAUSE_S = 1.0
_SAVE_S = 3.0
_LOOK_S = 0.02
_PATIENCE_S = 3.0
_LAST_SAVE_S = 2.0


class Leasing:
    """Tells gateways their shares once a second, and lets the store know what a day has cost.

    Args:
        controller: Its publisher reaches the gateways, and its fleet has models with limits.
        registry: Knows the limits of tenants and keys, and reaches the store.
        fleet_started: When the fleet was started, Unix time: a gateway of another start is another process, whatever
            its number.
        clock: Unix time.
    """

    def __init__(
        self,
        controller: Controller,
        registry: Registry,
        *,
        fleet_started: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._controller = controller
        self._registry = registry
        self._start = int(fleet_started * 1000)
        self._clock = clock
        self._lessor = Lessor()
        self._meanwhile: list[GatewayReport] | None = None  # reports that came while the lessor decides
        self._days = Days()
        self._limits: tuple[tuple[FleetSpec, Access | None], dict[str, Limits]] | None = None
        self._asked = asyncio.Event()
        self._told = asyncio.Event()
        controller.follow(self)

    @property
    def limits(self) -> dict[str, Limits]:
        """All subjects that have limits, by name."""
        known = self._controller.spec, self._registry.access
        if self._limits is None or any(new is not old for new, old in zip(known, self._limits[0], strict=True)):
            self._limits = known, limited(*known)  # of all keys: not each second, but when something has changed
        return self._limits[1]

    def uses(self) -> tuple[LimitUse, ...]:
        """What each subject has used of its limits."""
        return uses(self.limits, self._controller.publisher.reports, self._days.spent(self._today))

    def heard(self, report: GatewayReport) -> None:
        """Take in what a gateway says."""
        if self._meanwhile is None:
            self._lessor.heard(report)
        else:
            self._meanwhile.append(report)
        self._days.heard(f"{self._start}-{report.gateway}-{report.pid}", report.used)

    async def settled(self) -> None:
        """Wait until gateways that have just started know their shares, or it was tried for long enough."""
        await self._told.wait()

    async def run(self) -> None:
        """Share and count until cancelled; then what was counted is kept."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._share())
                group.create_task(self._keep())
        finally:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LAST_SAVE_S):
                    await self._save()

    @property
    def _today(self) -> int:
        return int(self._clock() // DAY_S)

    async def _share(self) -> None:
        await _soon(lambda: self._registry.access is not None and self._asked.is_set())
        if self.limits:
            await _soon(self._all_heard)
        while True:
            await self._tell()
            self._told.set()
            await asyncio.sleep(_PAUSE_S)

    def _all_heard(self) -> bool:
        return len({report.gateway for report in self._controller.publisher.reports}) >= self._gateways

    @property
    def _gateways(self) -> int:
        return self._controller.spec.listen.gateways

    async def _tell(self) -> None:
        today, limits = self._today, self.limits
        self._days.forget(today)
        bounded = {name for name, one in limits.items() if one.tokens_per_day is not None}
        spent = {name: tokens for name, tokens in self._days.spent(today).items() if name in bounded}
        leases = await self._decided(limits, today, spent)
        if leases is not None:
            await self._controller.publisher.publish(leases)

    async def _decided(self, limits: dict[str, Limits], today: int, spent: dict[str, int]) -> Leases | None:
        """Decide in a thread: with thousands of subjects it takes longer than the loop may stand still."""
        self._meanwhile = []
        try:
            return await asyncio.to_thread(self._lessor.decide, limits, self._gateways, today, spent)
        finally:
            reports, self._meanwhile = self._meanwhile, None
            for report in reports:
                self._lessor.heard(report)

    async def _keep(self) -> None:
        """A database that is down delays this, and nothing is lost: the counts stay here."""
        while True:
            with contextlib.suppress(StoreError):
                await self._load()
                await self._save()
            self._asked.set()
            await asyncio.sleep(_SAVE_S)

    async def _load(self) -> None:
        today, fleet = self._today, self._controller.spec.name
        if not self._days.is_loaded(today):
            self._days.load(today, await self._registry.read(lambda store: store.day(fleet, today)))
            await self._registry.read(lambda store: store.forget_days(fleet))

    async def _save(self) -> None:
        counted, fleet = self._days.unsaved(), self._controller.spec.name
        if counted:
            await self._registry.read(lambda store: store.keep_days(fleet, counted))
            self._days.saved(counted)


async def _soon(condition: Callable[[], bool]) -> None:
    """Wait for a condition, but not for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - several things can bring it about, and it is waited for only once
                await asyncio.sleep(_LOOK_S)
