"""Streams at the pace of an engine: a chunk leaves when its time has come, and its age is known when it arrives."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from array import array
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count

from benchmarks.gateway.upstream import Exchange
from benchmarks.gateway.wire import Asked, Script

__all__ = ["PACE_S", "Pace", "PacedExchange"]

PACE_S = 0.02
# uvloop's and asyncio's own timers go off at whole milliseconds, and 25 chunks would leave at once.
_TICK_NS = 200_000
_NS = 10**9
_CLOCK_MONOTONIC = 1
_SIZE = 8


class _Spec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Pace:
    """Does things at their times, which it meets within 0.2 ms.

    Attributes:
        lags_us: The ages of all chunks that have arrived, microseconds.
    """

    def __init__(self) -> None:
        self.lags_us = array("d")
        self._due: list[tuple[float, int, Callable[[], bool | None]]] = []
        self._numbers = count()
        self._timer: int | None = None

    def start(self) -> None:
        """Begin to tick, on the running loop."""
        libc = ctypes.CDLL(None, use_errno=True)
        timer = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        spec = _Spec(0, _TICK_NS, 0, _TICK_NS)
        if timer < 0 or libc.timerfd_settime(timer, 0, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd")
        asyncio.get_running_loop().add_reader(timer, self._tick, timer)
        self._timer = timer

    def stop(self) -> None:
        """Do nothing more."""
        if self._timer is not None:
            asyncio.get_running_loop().remove_reader(self._timer)
            os.close(self._timer)
            self._timer = None
        self._due.clear()

    def at(self, moment: float, do: Callable[[], bool | None]) -> None:
        """Do this then, by `time.perf_counter`, and again every `PACE_S` as long as it says so."""
        heappush(self._due, (moment, next(self._numbers), do))

    def _tick(self, timer: int) -> None:
        os.read(timer, _SIZE)
        now, due = time.perf_counter(), self._due
        while due and due[0][0] <= now:
            moment, number, do = due[0]
            if do():
                heapreplace(due, (moment + PACE_S, number, do))
            else:
                heappop(due)


class PacedExchange(Exchange):
    """One whose pieces leave at their time, not when the client has the last one.

    Args:
        model: See `Exchange`.
        reply: See `Exchange`.
        with_ids: See `Exchange`.
        pace: Says when.
    """

    __slots__ = ("_arrived", "_pace", "_sent_at")

    def __init__(self, model: str, reply: Script, with_ids: Script, pace: Pace) -> None:
        super().__init__(model, reply, with_ids, stream=True)
        self._pace = pace
        self._sent_at = [0.0] * len(reply.frames)
        self._arrived = 0

    def begin(self, engine: asyncio.WriteTransport, asked: Asked) -> None:
        """Send the head and the first piece; the others follow."""
        self._arrived = 0
        self._sent_at[0] = time.perf_counter()
        super().begin(engine, asked)
        self._pace.at(time.perf_counter() + PACE_S, self.send)

    def send(self) -> bool:
        """The time of the next piece has come; whether there is another one after it."""
        self._sent_at[self._sent] = time.perf_counter()
        super().advance()
        return self._sent < len(self._frames)

    def advance(self) -> None:
        """The client has one more piece."""
        self._pace.lags_us.append((time.perf_counter() - self._sent_at[self._arrived]) * 1e6)
        self._arrived += 1
