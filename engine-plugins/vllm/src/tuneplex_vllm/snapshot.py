"""What the worker has, told to the API server through shared memory: one writer, any number of readers, no waiting.

A file in memory holds a short head and a body. The writer makes the sequence number odd, writes, and makes it even
again; a reader takes the body only if the number was even and the same before and after, and if the checksum fits,
so that it never sees half of a change. Writing costs microseconds, which is why it can be done at each step.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO

__all__ = ["Reader", "Row", "State", "Writer", "clean_up", "decode", "encode", "place"]

_MAGIC = b"tuneplx1"
_HEAD = struct.Struct("<8sQQQ")  # magic, sequence, length, checksum
_TOTALS = struct.Struct("<dQQQQQdQQQQ")
_ROW = struct.Struct("<qqqQQdd")
_BODY = 64  # where it begins
_PINNED, _BROKEN = 1, 2
_TRIES = 200
_PREFIX = "tuneplex-vllm"


@dataclass(frozen=True)
class Row:
    """One adapter in memory.

    Attributes:
        id: What the engine calls it.
        rank: Its own.
        slot: Its place on the device; None when it is in host memory only.
        size: Its weights on the host in bytes, at its own rank.
        pinned: Whether it should keep its slot.
        broken: Whether its weights could not be read again, so that its requests must fail.
        used_at: When a batch last computed with it, in seconds since 1970; None for never.
        activation_s: How long it took to fill its slot, last time; None for never.
    """

    id: int
    rank: int
    slot: int | None
    size: int
    pinned: bool = False
    broken: bool = False
    used_at: float | None = None
    activation_s: float | None = None


@dataclass(frozen=True)
class State:
    """All that a worker tells.

    Attributes:
        at: When, by the machine's monotonic clock.
        slots: Places on the device.
        host_capacity: How many adapters host memory keeps.
        slot_bytes: What one slot takes on the device, whatever is in it.
        max_rank: The largest rank that a slot can hold.
        activations: How many times a slot was filled.
        activation_s: How long that took in all.
        activation_bytes: How many bytes of weights that were, at their own ranks.
        yields: How many times a pinned adapter lent its slot to a batch that had no other.
        failures: How many times a step needed an adapter whose weights could not be read again.
        rows: The adapters in memory.
    """

    at: float
    slots: int
    host_capacity: int
    slot_bytes: int
    max_rank: int
    activations: int = 0
    activation_s: float = 0.0
    activation_bytes: int = 0
    yields: int = 0
    failures: int = 0
    rows: tuple[Row, ...] = ()


def encode(state: State) -> bytearray:
    """A state as bytes."""
    body = bytearray(_TOTALS.size + _ROW.size * len(state.rows))
    _TOTALS.pack_into(
        body,
        0,
        state.at,
        state.slots,
        state.host_capacity,
        state.slot_bytes,
        state.max_rank,
        state.activations,
        state.activation_s,
        state.activation_bytes,
        state.yields,
        state.failures,
        len(state.rows),
    )
    for index, row in enumerate(state.rows):
        _ROW.pack_into(
            body,
            _TOTALS.size + index * _ROW.size,
            row.id,
            row.rank,
            -1 if row.slot is None else row.slot,
            row.size,
            _PINNED * row.pinned | _BROKEN * row.broken,
            math.nan if row.used_at is None else row.used_at,
            math.nan if row.activation_s is None else row.activation_s,
        )
    return body


def decode(body: bytes) -> State:
    """What `encode` was given.

    Raises:
        ValueError: The bytes are something else.
    """
    try:
        *totals, count = _TOTALS.unpack_from(body)
        return replace(State(*totals), rows=tuple(_row(body, index) for index in range(count)))
    except struct.error as error:
        raise ValueError(f"not a snapshot: {error}") from error


def _row(body: bytes, index: int) -> Row:
    adapter, rank, slot, size, flags, used_at, took = _ROW.unpack_from(body, _TOTALS.size + index * _ROW.size)
    return Row(
        adapter,
        rank,
        None if slot < 0 else slot,
        size,
        bool(flags & _PINNED),
        bool(flags & _BROKEN),
        None if math.isnan(used_at) else used_at,
        None if math.isnan(took) else took,
    )


def place(instance: str) -> Path:
    """Where the snapshot of an engine is; both sides know its instance id."""
    memory = Path("/dev/shm")  # noqa: S108 - the file in it is created for this user only, and never over another one
    directory = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return directory / f"{_PREFIX}-{os.geteuid()}-{instance}"


def clean_up(directory: Path) -> list[Path]:
    """Remove the snapshots of this user's engines that died without a chance to do so; which they were."""
    return [path for path in directory.glob(f"{_PREFIX}-{os.geteuid()}-*") if _removed_if_dead(path)]


def _removed_if_dead(path: Path) -> bool:
    """A writer holds a lock on its file as long as it lives, however it ends."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        return True
    return False


class Writer:
    """The one writer of a snapshot; the file is removed when its process ends.

    Args:
        path: Where.
        rows: How many adapters there can be.

    Raises:
        OSError: It cannot be made, or another engine that lives has it.
    """

    def __init__(self, path: Path, rows: int) -> None:
        clean_up(path.parent)
        size = _BODY + _TOTALS.size + rows * _ROW.size
        self._file = _create(path, size)
        self._map = mmap.mmap(self._file.fileno(), size)
        self._room = rows
        self._body = bytearray()
        self._rows: dict[int, int] = {}
        self._sequence = 0
        self._owner = os.getpid()
        self._path = path
        Finalize(None, self.close, exitpriority=0)

    def write(self, state: State) -> None:
        """Tell everything anew. What does not fit is left out: the last rows."""
        rows = state.rows[: self._room]
        self._body = encode(replace(state, rows=rows))
        self._rows = {row.id: _TOTALS.size + index * _ROW.size for index, row in enumerate(rows)}
        self._publish()

    def touch(self, adapters: Iterable[int], now: float) -> None:
        """Tell only that a batch computes with these adapters now (seconds since 1970)."""
        body = self._body
        struct.pack_into("<d", body, 0, time.monotonic())
        for adapter in adapters:
            start = self._rows.get(adapter)
            if start is not None:
                struct.pack_into("<d", body, start + _USED_AT, now)
        self._publish()

    def close(self) -> None:
        """Remove the file."""
        if os.getpid() == self._owner:  # not in a child that was forked with it
            self._path.unlink(missing_ok=True)

    def _publish(self) -> None:
        body, view = self._body, self._map
        self._sequence += 2
        _HEAD.pack_into(view, 0, _MAGIC, self._sequence - 1, len(body), 0)
        view[_BODY : _BODY + len(body)] = body
        _HEAD.pack_into(view, 0, _MAGIC, self._sequence, len(body), zlib.crc32(body))


_USED_AT = struct.calcsize("<qqqQQ")
_FAILURES = struct.calcsize("<dQQQQQdQQ")


def _create(path: Path, size: int) -> IO[bytes]:
    """A locked file of that size, which nobody could see before it was locked."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(size)
        os.link(fresh, path)
    except OSError:
        file.close()
        raise
    finally:
        fresh.unlink(missing_ok=True)
    return file


class Reader:
    """Reads a snapshot that another process writes.

    Args:
        path: Where it is, or will be once that process has made it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._last: State | None = None
        self._seen = -1

    def read(self) -> State | None:
        """The newest complete state; None as long as there is none."""
        view = self._opened()
        for _ in range(_TRIES if view is not None else 0):
            if self._try(view):
                break
        return self._last

    def forget(self) -> None:
        """Remove the file: for the end of an engine whose worker may have no time to do so."""
        if self._map is not None:
            self._path.unlink(missing_ok=True)

    def failures(self) -> int:
        """`State.failures` alone, at the cost of one look."""
        view = self._opened()
        return 0 if view is None else int(struct.unpack_from("<Q", view, _BODY + _FAILURES)[0])

    def _try(self, view: mmap.mmap | None) -> bool:
        if view is None:
            return True
        magic, before, length, checksum = _HEAD.unpack_from(view)
        if before == self._seen:
            return True
        body = view[_BODY : _BODY + length]
        same = _HEAD.unpack_from(view)[1] == before and before % 2 == 0
        if magic != _MAGIC or not same or zlib.crc32(body) != checksum:
            return False
        self._last, self._seen = decode(body), before
        return True

    def _opened(self) -> mmap.mmap | None:
        if self._map is None:
            with contextlib.suppress(OSError, ValueError), _open(self._path) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map


def _open(path: Path) -> IO[bytes]:
    """A file of this user's own.

    Raises:
        OSError: There is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(path)
    return os.fdopen(descriptor, "rb")
