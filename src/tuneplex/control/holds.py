"""Which replicas people have told to take no requests: in a file, because that must outlive control."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from tuneplex.control.seen import Hold
from tuneplex.files import write_whole
from tuneplex.launchers.launcher import Launched
from tuneplex.log import get_logger

__all__ = ["Holds", "hold_key"]


class _Kept(msgspec.Struct, frozen=True):
    started: float
    holds: dict[str, Hold]


class Holds:
    """The holds of one fleet, from its start to its end: another start begins without any, as its fleet file says.

    A keeper's note could not hold them: it is written once, at the engine's start, and external engines have none.

    Args:
        path: The file; without one they are only kept here.
        started: When the fleet was started, Unix time.
    """

    def __init__(self, path: Path | None = None, started: float = 0.0) -> None:
        self._path = path
        self._started = started
        self._holds = _read(path, started) if path is not None else {}

    def of(self, record: Launched) -> Hold | None:
        """The one of a replica, if it has any."""
        return self._holds.get(hold_key(record))

    def keep(self, record: Launched, hold: Hold | None) -> None:
        """Give a replica this hold, or take its away with None.

        Raises:
            OSError: It cannot be written; nothing has changed.
        """
        holds = {key: one for key, one in self._holds.items() if key != hold_key(record)}
        if hold is not None:
            holds[hold_key(record)] = hold
        self._write(holds)

    def forget_others(self, known: Collection[str]) -> None:
        """Drop the holds of replicas that are gone for good: one that gets such a name later is another one."""
        self._drop({key for key in self._holds if key not in known})

    def note_start(self, replica: str) -> None:
        """One was started: if it was held for that, nobody holds it any more."""
        self._drop({key for key, hold in self._holds.items() if key == replica and hold.restarts})

    def _drop(self, keys: Collection[str]) -> None:
        """What has come to its end has done so even if that cannot be written."""
        left = {key: hold for key, hold in self._holds.items() if key not in keys}
        try:
            self._write(left)
        except OSError as error:
            self._holds = left
            get_logger(__name__).warning("what is drained cannot be written down", path=self._path, error=error)

    def _write(self, holds: dict[str, Hold]) -> None:
        if holds == self._holds:
            return
        if self._path is not None:
            write_whole(self._path, msgspec.json.encode(_Kept(self._started, holds)))
        self._holds = holds


def hold_key(record: Launched) -> str:
    """What stays the same about a replica: its name, or the URL of an external one, which may be named anew."""
    return record.endpoint if record.launcher == "external" else record.replica


def _read(path: Path, started: float) -> dict[str, Hold]:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        get_logger(__name__).warning("nobody knows which replicas were drained", path=path, error=error)
        return {}
    return kept.holds if kept.started == started else {}
