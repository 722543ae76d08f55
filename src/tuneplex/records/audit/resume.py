"""Where a segment of the audit log ends, and what a crash has left behind that."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tuneplex.records.audit.chain import Head, Line, fits, links_after, split
from tuneplex.records.audit.marks import EVENT, Begin, Checkpoint, SignedHead, mark
from tuneplex.records.audit.segments import lines

__all__ = ["Tail", "find_tail"]


class _Place(msgspec.Struct):
    source: str
    seq: int


@dataclass(slots=True)
class Tail:
    """The end of a segment, and what must be known to go on there.

    Attributes:
        begin: What its first line says.
        head: The place of its last good line.
        signed: The newest checkpoint, of this segment or of the one before; None in a log that has none yet.
        positions: Of each source, the number of its last event in the log.
        size: The bytes up to the last good line.
        torn: The bytes behind it, which a crash has left.
        unsigned: How many lines follow the newest checkpoint.
        damaged: How many lines before the last good one are not as they were written.
    """

    begin: Begin
    head: Head
    signed: SignedHead | None
    positions: dict[str, int] = field(default_factory=dict)
    size: int = 0
    torn: int = 0
    unsigned: int = 0
    damaged: int = 0


def find_tail(path: Path) -> Tail | None:
    """Read a segment to its end; None where even its first line is not one.

    A line is good when it follows on the one before. Bad lines at the end are what a crash has left of the last write;
    bad lines before a good one are somebody's doing, and stay where they are for `verify` to find.

    Raises:
        AuditError: It cannot be read.
    """
    content = lines(path)
    tail = _begun(next(content, b""))
    if tail is None:
        return None
    links: tuple[bytes, ...] = (tail.head.chain,)
    n, bad = tail.head.n, 0
    for raw in content:
        line = split(raw)
        tail.torn += len(raw)
        if line is None or not fits(links, line) or line.n <= n:
            links, n, bad = links_after(links, raw), line.n if line is not None else n, bad + 1
            continue
        _go_on(tail, line)
        tail.damaged += bad
        links, n, bad = (line.chain,), line.n, 0
    return tail


def _begun(raw: bytes) -> Tail | None:
    line = split(raw)
    begin = mark(line, Begin) if line is not None else None
    if line is None or begin is None or not fits([begin.follows.chain], line):
        return None
    signed = SignedHead(begin.last_n, begin.last_chain, begin.at, begin.key_id) if begin.last_n else None
    return Tail(begin, Head(line.n, line.chain), signed, dict(begin.positions), size=len(raw), unsigned=1)


def _go_on(tail: Tail, line: Line) -> None:
    """Take a good line, and with it the bytes that are waiting since the last one."""
    tail.head = Head(line.n, line.chain)
    tail.size, tail.torn = tail.size + tail.torn, 0
    tail.unsigned += 1
    if line.kind == EVENT:
        place = msgspec.json.decode(line.body + b"}", type=_Place)
        tail.positions[place.source] = max(place.seq, tail.positions.get(place.source, 0))
    elif checkpoint := mark(line, Checkpoint):
        tail.signed = SignedHead(line.n, line.chain.hex(), checkpoint.at, checkpoint.key_id)
        tail.positions, tail.unsigned = dict(checkpoint.positions), 0
