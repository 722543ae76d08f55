"""Audit logs for tests, and what somebody could do to their files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tuneplex.records.audit import PUBLIC_FILE, AuditEvent, AuditLog, Head, PublicKey, Report, verify

__all__ = ["DAY_S", "NOW", "Clock", "Files", "events", "small_log"]

DAY_S = 86400.0
NOW = 20_000 * DAY_S + 3600


@dataclass
class Clock:
    """A clock that stands until somebody sets it."""

    now: float = NOW

    def __call__(self) -> float:
        """The time."""
        return self.now


def events(first: int, last: int, source: str = "gateway-0", tenant: str = "acme") -> list[AuditEvent]:
    """Events of one source with these numbers."""
    return [
        AuditEvent(source=source, seq=seq, at=NOW + seq, event="admitted", key_id="k1", model="contacts", tenant=tenant)
        for seq in range(first, last + 1)
    ]


class Files:
    """The segments of a log as lines that can be changed, and what `verify` says then.

    Args:
        directory: Where the log is.
    """

    def __init__(self, directory: Path) -> None:
        self.key = PublicKey.read(directory / PUBLIC_FILE)
        self.segments = {path.name: path.read_bytes() for path in sorted(directory.glob("*.jsonl"))}

    @property
    def places(self) -> list[tuple[str, int]]:
        """Where each line stands: file and number. The record of the n-th has the number n."""
        return [(name, at) for name, raw in self.segments.items() for at in range(1, raw.count(b"\n") + 1)]

    @property
    def lines(self) -> list[bytes]:
        """All lines, in the order of `places`."""
        return [line for raw in self.segments.values() for line in raw.splitlines(keepends=True)]

    def with_lines(self, placed: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
        """Files that hold these lines, each in the one that is named."""
        found = dict.fromkeys(self.segments, b"")
        for name, line in placed:
            found[name] += line
        return found

    def verify(
        self, segments: dict[str, bytes], expect: Head | Iterable[Head] | None = None, key: PublicKey | None = None
    ) -> Report:
        """What is said about such files, with nothing but the public key."""
        with tempfile.TemporaryDirectory() as directory:
            for name, raw in segments.items():
                (Path(directory) / name).write_bytes(raw)
            return verify(Path(directory), key or self.key, expect)


def small_log(directory: Path) -> Head:
    """A log of three segments with three events each and checkpoints in between; the head of its newest one."""
    clock = Clock()
    with AuditLog(directory, clock=clock) as log:
        for day in range(3):
            clock.now = NOW + day * DAY_S
            log.append(events(1 + day * 3, 2 + day * 3))
            log.checkpoint()
            log.append(events(3 + day * 3, 3 + day * 3))
        return log.checkpoint().head
