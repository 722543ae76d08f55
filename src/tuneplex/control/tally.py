"""What gateways had counted when they ended, kept in a file, so that the fleet's counters never go down."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from tuneplex.control.figures import added
from tuneplex.files import write_whole
from tuneplex.types import GatewayReport

__all__ = ["Tally"]

_NOTHING = GatewayReport(gateway=-1, pid=0, generation=0)


class _Kept(msgspec.Struct, frozen=True):
    """The file."""

    started: float
    total: GatewayReport


class Tally:
    """The sum of the last reports of all gateways that have ended since the fleet was started.

    Args:
        file: Where it is kept for the next control; nowhere without one.
        started: When the fleet was started, Unix time: what an earlier start has counted is over.

    Attributes:
        total: The sum.
    """

    def __init__(self, file: Path | None = None, started: float = 0.0) -> None:
        self._file = file
        self._started = started
        self.total = _NOTHING
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            kept = msgspec.msgpack.decode(file.read_bytes(), type=_Kept) if file is not None else None
            if kept is not None and kept.started == started:
                self.total = kept.total

    def add(self, report: GatewayReport) -> None:
        """One more has ended. A disk that is full costs the next control what is kept here, and nobody else."""
        self.total = added(self.total, report)
        if self._file is not None:
            with contextlib.suppress(OSError):
                write_whole(self._file, msgspec.msgpack.encode(_Kept(self._started, self.total)))
