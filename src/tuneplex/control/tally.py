"""What gateways had counted when they ended, kept in a file, so that the fleet's counters never go down."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import msgspec

from tuneplex.control.figures import added
from tuneplex.files import write_whole
from tuneplex.types import GatewayReport

__all__ = ["Tally"]

_NOTHING = GatewayReport(gateway=-1, pid=0, generation=0)
_MOST = 64


class _Kept(msgspec.Struct, frozen=True):
    """The file."""

    started: float
    older: GatewayReport
    ended: list[GatewayReport]


class Tally:
    """The last reports of all gateways that have ended, or were lost, since the fleet was started.

    Args:
        file: Where they are kept for the next control; nowhere without one.
        started: When the fleet was started, Unix time: what an earlier start has counted is over.
    """

    def __init__(self, file: Path | None = None, started: float = 0.0) -> None:
        self._file = file
        self._started = started
        self._older = _NOTHING  # the sum of those that ended long ago
        self._ended: dict[tuple[int, int], GatewayReport] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            kept = msgspec.msgpack.decode(file.read_bytes(), type=_Kept) if file is not None else None
            if kept is not None and kept.started == started:
                self._older = kept.older
                self._ended = {_process(report): report for report in kept.ended}

    def add(self, report: GatewayReport) -> None:
        """One more is gone. A disk that is full costs the next control what is kept here, and nobody else."""
        self._ended[_process(report)] = _counts(report)
        while len(self._ended) > _MOST:
            self._older = added(self._older, self._ended.pop(next(iter(self._ended))))
        if self._file is not None:
            with contextlib.suppress(OSError):
                kept = _Kept(self._started, self._older, list(self._ended.values()))
                write_whole(self._file, msgspec.msgpack.encode(kept))

    def total(self, living: Iterable[GatewayReport]) -> GatewayReport:
        """The sum of all but these, which were only lost for a while."""
        here = {_process(report) for report in living}
        gone = (report for process, report in self._ended.items() if process not in here)
        return reduce(added, gone, self._older)


def _process(report: GatewayReport) -> tuple[int, int]:
    return report.gateway, report.pid


def _counts(report: GatewayReport) -> GatewayReport:
    return GatewayReport(report.gateway, report.pid, 0, counters=report.counters, buckets=report.buckets)
