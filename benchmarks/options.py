"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from rich.console import Console

__all__ = ["among", "console", "interruptible"]

_WIDTH = 130
_Result = TypeVar("_Result")


def among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads names with commas between them, for argparse."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return read


def console() -> Console:
    """As wide as the terminal; wide enough for the tables when the output goes to a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH)


async def interruptible(work: Coroutine[object, object, _Result]) -> _Result:
    """Do the work; a signal cancels it, so that the processes it started end before we do."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await task
