"""CPU time of processes in nanoseconds, and which core they run on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

__all__ = ["Cores", "Meter", "cores", "machine_busy_s", "on_core"]

_MODE_SCHED = 2
_CLOCK_BITS = 3


def _clock_ns(pid: int) -> int:
    """CPU time of a process: user and system, all threads, living and dead.

    The clock's number is made as `clock_getcpuclockid(3)` makes it. It counts the scheduler's nanoseconds, not ticks.
    """
    return time.clock_gettime_ns((~pid << _CLOCK_BITS) | _MODE_SCHED)


class Meter:
    """Reads the CPU time of a process and of all its descendants.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def pids(self) -> tuple[int, ...]:
        """The process and its descendants; a round counts only if they are the same before and after it."""
        return (self._process.pid, *sorted(child.pid for child in self._process.children(recursive=True)))

    def read_ns(self) -> int:
        """Nanoseconds of CPU time that they have used so far."""
        return sum(_clock_ns(pid) for pid in self.pids())

    def memory_mb(self) -> float:
        """Resident memory of all of them, in MB (10^6 bytes)."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self.pids()) / 1e6


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of load and upstream, the core of the proxies, and whatever cores there are besides."""

    load: int
    proxy: int
    more: tuple[int, ...] = ()

    def proxies(self, processes: int) -> tuple[int, ...]:
        """The cores of a proxy with so many processes; where there are too few, it shares the load's."""
        return (self.proxy, *self.more, self.load)[:processes]


def cores() -> Cores | None:
    """All cores that this process may use; None on a machine with one."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[1], tuple(allowed[2:])) if len(allowed) > 1 else None


@contextmanager
def on_core(*cores: int | None) -> Iterator[None]:
    """Run on these cores for a while; processes that start meanwhile inherit them, from their first instruction on.

    Without any, or with None, nothing changes.
    """
    before = os.sched_getaffinity(0)
    wanted = {core for core in cores if core is not None}
    if wanted:
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine_busy_s() -> float:
    """CPU seconds that the machine has spent since it started, on whatever it was, steal time included.

    It is as coarse as the kernel's ticks, 10 ms for each core.
    """
    times = psutil.cpu_times()
    return sum(times[:3]) + sum(getattr(times, name, 0.0) for name in ("irq", "softirq", "steal"))
