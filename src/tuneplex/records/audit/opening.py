"""How an audit log is opened for writing: the lock, the key, and the segment that is gone on with or begun."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tuneplex.errors import AuditBusy, AuditError
from tuneplex.records.audit.chain import START, Head
from tuneplex.records.audit.drafts import Draft
from tuneplex.records.audit.keys import SIGNING_FILE, Signer
from tuneplex.records.audit.marks import Begin, SignedHead
from tuneplex.records.audit.resume import Tail, find_tail
from tuneplex.records.audit.segments import SegmentFile, lines, name_of, segments

__all__ = ["begun", "locked", "reopened", "signer_of", "telling"]

_POLL_S = 0.02
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_AFRESH = "keep the whole directory elsewhere and move it away: then a new log begins"


@contextlib.contextmanager
def telling(directory: Path) -> Iterator[None]:
    """Say in words what the system says about a log's files.

    Raises:
        AuditError: What was an `OSError`.
    """
    try:
        yield
    except OSError as error:
        hint = "make room on its disk" if error.errno in _NO_ROOM else ""
        why = error.strerror or str(error)
        raise AuditError(f"the audit log in {directory} cannot be written: {why}", hint=hint) from error


def locked(directory: Path, patience_s: float) -> int:
    """The lock that makes this process the only writer, for as long as the descriptor is open.

    Raises:
        AuditBusy: Another process has it, and has not let go of it in this time.
        OSError: It cannot be opened.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                words = f"another process writes the audit log in {directory}"
                raise AuditBusy(words, hint="only one can; a fleet that runs does") from None
            time.sleep(_POLL_S)
        else:
            return descriptor


def signer_of(directory: Path) -> Signer:
    """The log's key, made where there is no log yet.

    Raises:
        AuditError: There is a log and no key, or the key cannot be read.
        OSError: It cannot be written.
    """
    if (directory / SIGNING_FILE).exists():
        return Signer.read(directory)
    if segments(directory):
        hint = f"take it from a backup, or {_AFRESH}"
        raise AuditError(f"{directory / SIGNING_FILE} is gone, and the log there was signed with it", hint=hint)
    return Signer.make(directory)


def reopened(directory: Path, key_id: str) -> tuple[Tail, SegmentFile] | None:
    """The newest segment, without what a crash has left behind its last good line; None where there is no segment.

    Raises:
        AuditError: It cannot be gone on with.
        OSError: It cannot be opened.
    """
    found = segments(directory)
    if found and _is_torn(found[-1]):
        logging.getLogger(__name__).warning("%s was only begun when its writer ended; it is removed", found[-1])
        found.pop().unlink()
    if not found:
        return None
    tail = find_tail(found[-1])
    if tail is None:
        raise AuditError(f"{found[-1]}: its first line is not as it was written", hint=_AFRESH)
    if tail.begin.key_id != key_id:
        words = f"{found[-1]} was signed with another key ({tail.begin.key_id}) than that of {SIGNING_FILE} ({key_id})"
        raise AuditError(words, hint=_AFRESH)
    _tell(found[-1], tail)
    return tail, SegmentFile(found[-1], tail.size)


def _is_torn(path: Path) -> bool:
    """Whether there is not even one whole line, which only an end in the middle of the first write can cause."""
    return not next(lines(path), b"").endswith(b"\n")


def _tell(path: Path, tail: Tail) -> None:
    logger = logging.getLogger(__name__)
    if tail.torn:
        logger.warning("%s: %d bytes of a write that did not end are cut off", path, tail.torn)
    if tail.damaged:
        logger.error("%s: %d lines are not as they were written; see `tuneplex audit verify`", path, tail.damaged)


def begun(
    directory: Path, number: int, now: float, key_id: str, before: Tail | None = None
) -> tuple[Tail, SegmentFile]:
    """A new segment, which goes on from the one before.

    Raises:
        OSError: It cannot be written; then there is none.
    """
    head = before.head if before is not None else Head(0, START)
    signed: SignedHead | None = before.signed if before is not None else None
    positions: Mapping[str, int] = before.positions if before is not None else {}
    begin = Begin(
        at=now,
        segment=number,
        last_n=head.n,
        last_chain=head.chain.hex(),
        key_id=key_id,
        positions=dict(positions),
    )
    draft = Draft(head)
    draft.add(Begin.kind, msgspec.json.encode(begin))
    file = SegmentFile.create(directory / name_of(number), draft.content())
    return Tail(begin, draft.head, signed, dict(positions), file.size, unsigned=1), file
