"""Unix time that goes on evenly, whatever becomes of the system's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuneplex.log import get_logger

__all__ = ["Clock"]

_JUMP_S = 1.0


class Clock:
    """Control's own time: right when control starts, and from then on nobody sets it.

    Everything that lasts is measured by it, so that no engine is taken for silent, and none is stopped in the middle of
    its requests, because somebody has set the clock. Gateways read the system's clock: for them times are `told`.

    Args:
        wall: The system's clock, Unix time.
        steady: Seconds that only go forward.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._start = wall() - steady()
        self._ahead = 0.0

    def now(self) -> float:
        """The time."""
        return self._start + self._steady()

    @property
    def ahead(self) -> float:
        """How far the system's clock is ahead of this one, seconds; as long as nobody sets it, the same number."""
        ahead = self._wall() - self.now()
        if abs(ahead - self._ahead) > _JUMP_S:
            get_logger(__name__).warning("the system's clock was set", by_s=round(ahead - self._ahead))
            self._ahead = ahead
        return self._ahead
