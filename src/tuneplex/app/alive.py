"""A process whose event loop hangs ends, so that whoever looks after it starts it again."""

from __future__ import annotations

import asyncio
import faulthandler

__all__ = ["end_when_hanging"]

_PER_PATIENCE = 10


async def end_when_hanging(patience_s: float) -> None:
    """Watch over the event loop that this runs in, until cancelled.

    When it has stood still for so long, the process writes to standard error where it hangs, and ends with 1. A thread
    without Python sees to that, so nothing in Python can hold it up.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(patience_s, exit=True)
            await asyncio.sleep(patience_s / _PER_PATIENCE)
    finally:
        faulthandler.cancel_dump_traceback_later()
