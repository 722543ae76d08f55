"""Divides the replicas among several gateways once a second. How is in `policy`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from tuneplex.control.controller import Controller
from tuneplex.control.registry import Registry
from tuneplex.policy.turns import turns
from tuneplex.types import GatewayReport, Turns

__all__ = ["Dividing"]

_PAUSE_S = 1.0
_SILENT_S = 3.0


class Dividing:
    """Tells gateways how they share the replicas, whenever that has changed; a single gateway needs to be told nothing.

    Args:
        controller: Its publisher reaches the gateways, and it knows the replicas.
        registry: Knows the weights of tenants.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, controller: Controller, registry: Registry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._controller = controller
        self._registry = registry
        self._clock = clock
        self._heard: dict[int, tuple[float, GatewayReport]] = {}
        self._last = Turns(generation=int(time.time()) * 1000)  # above all that an earlier control has published
        controller.follow(self)

    def heard(self, report: GatewayReport) -> None:
        """Take in what a gateway says."""
        self._heard[report.gateway] = self._clock(), report

    async def settled(self) -> None:
        """Gateways need not be told before they serve: until then each has an even part of every replica."""

    async def run(self) -> None:
        """Divide until cancelled."""
        while True:
            await self._tell()
            await asyncio.sleep(_PAUSE_S)

    async def _tell(self) -> None:
        since, access = self._clock() - _SILENT_S, self._registry.access
        reports = [report for at, report in self._heard.values() if at >= since]
        weights = {tenant.name: float(tenant.weight) for tenant in access.tenants} if access is not None else {}
        gateways, replicas = self._controller.gateways, self._controller.view.replicas
        alone = len(gateways) == 1  # then it has everything
        found = Turns() if alone else turns(replicas, gateways, reports, weights)
        if msgspec.structs.replace(found, generation=self._last.generation) != self._last:
            self._last = msgspec.structs.replace(found, generation=self._last.generation + 1)
            await self._controller.publisher.publish(self._last)
