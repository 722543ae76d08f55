"""The audit log as its one writer sees it: events come in, and are on the disk and in the chain when that returns."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import msgspec

from tuneplex.errors import AuditError
from tuneplex.files import sync_directory
from tuneplex.records.audit.drafts import Draft
from tuneplex.records.audit.events import AuditEvent, encoded
from tuneplex.records.audit.marks import EVENT, Begin, Checkpoint, Dropped, SignedHead
from tuneplex.records.audit.opening import begun, locked, reopened, signer_of, telling
from tuneplex.records.audit.segments import beginning, number_of, segments

__all__ = ["CHECKPOINT_S", "IDLE_CHECKPOINT_S", "SEGMENT_BYTES", "AuditLog", "checkpoint_due"]

CHECKPOINT_S = 10.0
"""Seconds from one checkpoint to the next while there are events."""
IDLE_CHECKPOINT_S = 300.0
"""The same while there are none: a head that is kept elsewhere also says until when there were none."""
SEGMENT_BYTES = 64 * 1024 * 1024

_DAY_S = 86400


def checkpoint_due(now: float, last: float, *, wrote: bool) -> bool:
    """Whether it is time for a checkpoint.

    Args:
        now: The time, in seconds, by any clock.
        last: When the last one was made, by the same clock. If that is still to come, somebody has set the clock.
        wrote: Whether there were events since then.
    """
    return not 0 <= now - last < (CHECKPOINT_S if wrote else IDLE_CHECKPOINT_S)


class AuditLog:
    """The log of one directory. Only one process can have it open.

    Its calls wait for the disk, so they are not for an event loop; one thread at a time may make them.

    Args:
        directory: Made if it is not there, and for this user's eyes only; so is the key that signs.
        clock: Unix time in seconds.
        segment_bytes: At how many bytes a segment is sealed; it also is when a new day of UTC has come.
        patience_s: How long to wait for another process to let go of it.

    Attributes:
        torn: How many bytes behind the last good line a crash had left, which were cut off.
        damaged: How many lines of the newest segment are not as they were written; `verify` names them.

    Raises:
        AuditBusy: Another process has it open.
        AuditError: It cannot be read or written, or lacks its key.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
        segment_bytes: int = SEGMENT_BYTES,
        patience_s: float = 1.0,
    ) -> None:
        self.directory = directory
        self._closed = False
        self._clock, self._segment_bytes = clock, segment_bytes
        with telling(directory), contextlib.ExitStack() as undo:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            self._lock = locked(directory, patience_s)
            undo.callback(os.close, self._lock)
            self._signer = signer_of(directory)
            key_id = self._signer.public.id
            self._tail, self._file = reopened(directory, key_id) or begun(directory, 1, clock(), key_id)
            undo.callback(self._file.close)
            self.torn, self.damaged = self._tail.torn, self._tail.damaged
            self._signed = self._tail.signed or self.checkpoint()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def positions(self) -> Mapping[str, int]:
        """Of each source, the number of its last event that is in the log."""
        return MappingProxyType(self._tail.positions)

    @property
    def signed(self) -> SignedHead:
        """The newest checkpoint."""
        return self._signed

    @property
    def unsigned(self) -> int:
        """How many lines follow it."""
        return self._tail.unsigned

    def append(self, events: Iterable[AuditEvent]) -> int:
        """Write events; they are on the disk when this returns. How many were written.

        Of a source's events, those that are in the log already are passed over, so a journal may be handed over again
        after a crash. A source that began again from 1 would be passed over: each journal needs a name of its own, for
        ever. The numbers of a source grow, and need not be without gaps: not every entry of a journal is an event.

        Raises:
            AuditError: They cannot be written, and none of them is; try again later.
        """
        wanted = list(events)
        if wanted:
            self._turn()
        draft, positions = Draft(self._tail.head), dict(self._tail.positions)
        for event in _to_write(wanted, positions):
            draft.add(EVENT, encoded(event))
        self._write(draft)
        self._tail.positions = positions
        self._tail.unsigned += draft.count
        return draft.count

    def checkpoint(self) -> SignedHead:
        """Sign all that is in the log; the signature is on the disk when this returns.

        Raises:
            AuditError: It cannot be written; try again later.
        """
        signed = self._sign(Draft(self._tail.head))
        self._turn()
        return signed

    def forget(self, sources: Iterable[str]) -> None:
        """Let go of sources that are over, from the next checkpoint on; their journals must be gone by then."""
        for source in sources:
            self._tail.positions.pop(source, None)

    def retain(self, keep_s: float, now: float) -> int:
        """Drop whole sealed segments that are older than `keep_s` seconds, oldest first. How many were dropped.

        What is dropped is first said in the log, and signed, so that what remains still verifies.

        Raises:
            AuditError: That cannot be written, or a file cannot be removed; try again later.
        """
        old, last = self._old(now - keep_s)
        if last is None:
            return 0
        draft = Draft(self._tail.head)
        through = number_of(old[-1])
        dropped = Dropped(at=now, through=through, last_n=last.last_n, last_chain=last.last_chain)
        draft.add(Dropped.kind, msgspec.json.encode(dropped))
        self._sign(draft)
        with telling(self.directory):
            for path in old:
                path.unlink()
                sync_directory(self.directory)
        return len(old)

    def _old(self, before: float) -> tuple[list[Path], Begin | None]:
        """The segments that were sealed before then, and how the one behind them begins."""
        found = segments(self.directory)
        old, last = [], None
        for path, following in pairwise(found):
            begin = beginning(following)
            if begin is None or begin.at >= before:
                break
            old.append(path)
            last = begin
        return old, last

    def close(self) -> None:
        """Sign what is not signed yet, if that can be done, and let others open the log."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._tail.unsigned:
                self.checkpoint()
        except AuditError as error:
            logging.getLogger(__name__).warning("the audit log's last checkpoint is missing: %s", error)
        finally:
            self._file.close()
            os.close(self._lock)

    def _sign(self, draft: Draft) -> SignedHead:
        """Write a draft with a checkpoint at its end."""
        positions = dict(self._tail.positions)
        checkpoint = Checkpoint(at=self._clock(), positions=positions, key_id=self._signer.public.id)
        signed = draft.sign(self._signer, checkpoint)
        self._write(draft)
        self._signed = self._tail.signed = signed
        self._tail.unsigned = 0
        return signed

    def _write(self, draft: Draft) -> None:
        if draft.count:
            with telling(self.directory):
                self._file.append(draft.content())
            self._tail.head = draft.head

    def _turn(self) -> None:
        """Seal the segment when it is full, or of an earlier day, and begin the next one."""
        now = self._clock()
        if self._file.size < self._segment_bytes and now // _DAY_S <= self._tail.begin.at // _DAY_S:
            return
        if self._tail.unsigned:
            self._sign(Draft(self._tail.head))
        old, number = self._file, number_of(self._file.path) + 1
        with telling(self.directory):
            self._tail, self._file = begun(self.directory, number, now, self._signer.public.id, self._tail)
        old.close()


def _to_write(events: Iterable[AuditEvent], positions: dict[str, int]) -> Iterator[AuditEvent]:
    """Those that are not in the log yet, numbered; brings `positions` to where they end."""
    for event in events:
        last = positions.get(event.source, 0)
        seq = event.seq or last + 1
        if seq <= last:
            continue
        positions[event.source] = seq
        yield event if event.seq else msgspec.structs.replace(event, seq=seq)
