"""What is found out about an audit log: how far it is proven, and what was changed, removed or moved."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding", "Report", "What"]

What = Literal["changed", "removed", "moved", "forged", "cut", "rebuilt", "empty"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as the log's writer left it.

    Attributes:
        what: `changed`: a line says something else. `removed`: lines or segments are missing. `moved`: a line stands
            elsewhere, or again. `forged`: a signature is not the key's. `cut`: the end is missing. `rebuilt`: this is
            another log than the one whose head was kept. `empty`: there is no log.
        segment: The file's name, or empty.
        line: The line in that file, from 1; 0 where it is about the file.
        n: The number of the record that is meant; 0 where there is none.
        words: The same for a person.
    """

    what: What
    segment: str
    line: int
    n: int
    words: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` found.

    Attributes:
        ok: Whether nothing was found, and there is a checkpoint that proves something.
        proven: Up to which record everything is proven; 0 if nothing is.
        head: The checkpoint that proves it, as `n:chain`; empty if there is none.
        at: When that was signed, Unix time in seconds.
        key_id: The public key that everything was checked with.
        unsigned: How many records follow it, which have only the chain to speak for them.
        records: How many records there are, checkpoints and other marks included.
        segments: How many files they are in.
        dropped: Up to which record retention has dropped them; 0 if it has not.
        incomplete: The segment whose last line has no end yet, because it is being written or a crash cut it; or empty.
        findings: What is wrong, in the log's order; the first ones only.
        more: How many further ones there are.
    """

    ok: bool
    proven: int
    head: str
    at: float
    key_id: str
    unsigned: int
    records: int
    segments: int
    dropped: int
    incomplete: str
    findings: tuple[Finding, ...] = ()
    more: int = 0
