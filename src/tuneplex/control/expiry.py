"""Lets go of requests that have been kept for long enough; they stay added up by the day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tuneplex.control.registry import Registry
from tuneplex.errors import StoreError
from tuneplex.log import get_logger
from tuneplex.types import FleetSpec

__all__ = ["Expiry"]

_DAY_S = 86400
_LOOK_S = 3600.0
_log = get_logger(__name__)


class Expiry:
    """Looks at the start and each hour what is too old; each day's requests are let go of once.

    Args:
        registry: Has the store.
        spec: The fleet as it is now.
        wall: Unix time.
    """

    def __init__(
        self, registry: Registry, spec: Callable[[], FleetSpec], wall: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry
        self._spec = spec
        self._wall = wall
        self._done: int | None = None

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                _log.warning("requests that are too old are still kept", why=str(error))
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> int:
        """Let go of what is too old, if that was not done today; how many requests they were.

        Raises:
            StoreError: The store does not answer; what was done is done, and the rest is tried again.
        """
        before = int((self._wall() - self._spec().records.keep_s) // _DAY_S)
        if before == self._done:
            return 0
        count = await self._expire(before)
        self._done = before
        if count:
            _log.info("requests that were too old are only kept by the day now", requests=count)
        return count

    async def _expire(self, before: int) -> int:
        """In small steps, with a pause after each that is as long: nobody else can write meanwhile."""
        fleet, count = self._spec().name, 0
        began = time.monotonic()
        while done := await self._registry.read(lambda store: store.expire_requests(fleet, before)):
            count += done
            await asyncio.sleep(time.monotonic() - began)
            began = time.monotonic()
        return count
