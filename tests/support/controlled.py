"""A control loop in this process, and short ways to ask it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping

from tuneplex.control import Controller
from tuneplex.control.clock import Clock
from tuneplex.control.seen import Limits
from tuneplex.launchers.launcher import Launcher
from tuneplex.types import AdapterVersion, Base, FleetSpec, PoolSpec, ReplicaStatus, Status

__all__ = ["HASTY", "POOL", "controlled", "fleet", "only", "until"]

HASTY = Limits(first_restart_s=0.01, longest_restart_s=0.02, silent_s=0.2, unreachable_s=0.2, first_load_s=0.01)
POOL = PoolSpec("default")


@contextlib.asynccontextmanager
async def controlled(
    spec: FleetSpec,
    launchers: Mapping[str, Launcher],
    limits: Limits = HASTY,
    *,
    applied_at: float = 0.0,
    clock: Clock | None = None,
) -> AsyncIterator[Controller]:
    """A controller that runs for as long as the block does."""
    controller = Controller(
        spec,
        applied_at=applied_at,
        url="http://x/v1",
        started=time.time(),
        launchers=launchers,
        limits=limits,
        clock=clock,
    )
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(controller: Controller, condition: Callable[[Status], object]) -> Status:
    """Wait for a status that meets a condition."""
    async with asyncio.timeout(20):
        while not condition(controller.status()):  # noqa: ASYNC110 - people poll the status, too
            await asyncio.sleep(0.01)
    return controller.status()


def only(status: Status) -> ReplicaStatus:
    """The fleet's only replica."""
    (replica,) = status.replicas
    return replica


def fleet(*adapters: AdapterVersion, pool: PoolSpec = POOL) -> FleetSpec:
    """A fleet of one pool."""
    return FleetSpec("fleet", Base("base", "/models/base"), adapters, pools=(pool,))
