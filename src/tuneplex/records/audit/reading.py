"""What is read of an audit log without writing it: the events of a time and a tenant, and the newest checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tuneplex.records.audit.chain import Line, split
from tuneplex.records.audit.events import AuditEvent
from tuneplex.records.audit.marks import EVENT, SignedHead
from tuneplex.records.audit.resume import find_tail
from tuneplex.records.audit.segments import lines, segments

__all__ = ["Picked", "Selection", "has_log", "newest_head", "selected"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events are wanted.

    Attributes:
        since: The first moment, Unix time in seconds.
        until: The moment from which on they are not wanted any more.
        tenant: Only this one's, and what says that events are lost, which may have been this one's; None takes all.
    """

    since: float = -math.inf
    until: float = math.inf
    tenant: str | None = None

    def takes(self, event: AuditEvent) -> bool:
        """Whether it is one of them."""
        mine = self.tenant in {None, event.tenant} or event.event == "lost"
        return mine and self.since <= event.at < self.until


@dataclass(frozen=True, slots=True)
class Picked:
    """An event as it stands in the log.

    Attributes:
        n: The number of its line.
        event: What it says.
        raw: The line itself, with its newline.
    """

    n: int
    event: AuditEvent
    raw: bytes


def has_log(directory: Path) -> bool:
    """Whether there is a log at all."""
    return bool(segments(directory))


def selected(directory: Path, wanted: Selection) -> Iterator[Picked | None]:
    """The wanted events in the log's order, a line at a time; None for each line that cannot be read.

    Whether they are as they were written is `verify`'s to say. A last line that has no end yet is left out.

    Raises:
        AuditError: A file cannot be read.
    """
    for path in segments(directory):
        for raw in lines(path):
            line = split(raw)
            if line is None:
                yield from [None] if raw.endswith(b"\n") else []
                continue
            event = _event(line)
            if event is not None and wanted.takes(event):
                yield Picked(line.n, event, raw)
            elif event is None and line.kind == EVENT:
                yield None


def _event(line: Line) -> AuditEvent | None:
    if line.kind != EVENT:
        return None
    try:
        return msgspec.json.decode(line.body + b"}", type=AuditEvent)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def newest_head(directory: Path) -> SignedHead | None:
    """The newest checkpoint, also while the log is written; None where there is none.

    Raises:
        AuditError: A file cannot be read.
    """
    for path in reversed(segments(directory)):
        tail = find_tail(path)
        if tail is not None and tail.signed is not None:
            return tail.signed
    return None
