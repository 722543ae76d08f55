"""What a process of the fleet does when its supervisor is gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

__all__ = ["watch_lifeline"]


def watch_lifeline(descriptor: int, closed: Callable[[], object]) -> None:
    """Call `closed` once, when the other end of the lifeline closes: the supervisor has ended, in whatever way."""
    os.set_inheritable(descriptor, False)
    loop = asyncio.get_running_loop()

    def readable() -> None:
        loop.remove_reader(descriptor)
        closed()

    loop.add_reader(descriptor, readable)
