"""Engines that already run somewhere: nothing is started and nothing is stopped, they are only looked after."""

from __future__ import annotations

import asyncio
import time

import msgspec

from tuneplex.launchers.launcher import Launched, Order

__all__ = ["ExternalLauncher"]


class ExternalLauncher:
    """Attaches to engines by their URL. What it knows can be found again from the fleet file, so it keeps nothing."""

    name = "external"

    def __init__(self) -> None:
        self._launched: dict[str, Launched] = {}
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """Set whenever `launched` changed."""
        return self._changed

    @property
    def launched(self) -> tuple[Launched, ...]:
        """All that are attached."""
        return tuple(self._launched.values())

    @property
    def free_gpus(self) -> int | None:
        """Not our business."""
        return None

    async def launch(self, order: Order) -> None:
        """Attach to the engine at `order.url`."""
        self._launched[order.replica] = Launched(
            replica=order.replica,
            pool=order.pool.name,
            launcher=self.name,
            engine=order.pool.engine,
            settings=order.settings,
            endpoint=order.url,
            secret=order.pool.secret,
            started=time.time(),
            failures=order.failures,
            restarts=order.restarts,
            drain_s=order.pool.drain_s,
        )
        self._changed.set()

    async def stop(self, replica: str) -> None:
        """Leave the engine alone from now on."""
        record = self._launched[replica]
        self._launched[replica] = msgspec.structs.replace(record, ended=time.time())
        self._changed.set()

    async def forget(self, replica: str) -> None:
        """Drop its record."""
        self._launched.pop(replica, None)
        self._changed.set()
