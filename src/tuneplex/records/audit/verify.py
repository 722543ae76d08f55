"""Whether an audit log is as its writer left it, from its files and the public key alone, in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tuneplex.records.audit.chain import START, Head, Line, digest, fits, links_after, split
from tuneplex.records.audit.findings import Finding, Report, What
from tuneplex.records.audit.keys import PublicKey
from tuneplex.records.audit.marks import Begin, Checkpoint, Dropped, mark, signed_part, to_sign
from tuneplex.records.audit.segments import lines, name_of, number_of, segments

__all__ = ["verify"]

_MOST_FINDINGS = 100
_NUMBER = re.compile(rb'\{"n":[0-9]+')


def verify(directory: Path, public_key: PublicKey, expect: Head | Iterable[Head] | None = None) -> Report:
    """Read the whole log, a line at a time, and tell what is proven of it.

    It may be written meanwhile.

    Args:
        directory: Where its segments are.
        public_key: The key that its checkpoints must be signed with. One that was kept elsewhere proves the most.
        expect: A head that was kept elsewhere, or several: all up to there must still be the same. Of several, those
            may be of segments that retention has dropped, as long as one is not.

    Raises:
        AuditError: A file cannot be read.
    """
    heads = (expect,) if isinstance(expect, Head) else tuple(expect or ())
    walk = _Walk(public_key, frozenset(heads))
    paths = segments(directory)
    for row, following in _with_next(_rows(paths)):
        walk.see(row, following)
    return walk.end(len(paths))


@dataclass(frozen=True, slots=True)
class _Row:
    """A line at its place."""

    segment: int
    line: int
    raw: bytes


def _rows(paths: list[Path]) -> Iterator[_Row]:
    for path in paths:
        for at, raw in enumerate(lines(path), start=1):
            yield _Row(number_of(path), at, raw)


def _with_next(rows: Iterator[_Row]) -> Iterator[tuple[_Row, _Row | None]]:
    current = next(rows, None)
    while current is not None:
        following = next(rows, None)
        yield current, following
        current = following


class _Walk:
    """What is known of the log up to the line that was seen last.

    A line is right when it follows on the one before. Where it does not, its number and the next line's tell what has
    happened, so that each mishap is named once and the lines behind it are not blamed for it.
    """

    def __init__(self, key: PublicKey, expect: frozenset[Head]) -> None:
        self._key, self._expect = key, expect
        self._met: set[Head] = set()
        self._links: tuple[bytes, ...] = (START,)
        self._first = Head(0, START)  # what the first segment goes on from
        self._n = self._segment = 0
        self._sound = True  # the line before was right
        self._proven, self._at = Head(0, START), 0.0
        self._records = self._unsigned = self._more = 0
        self._incomplete = ""
        self._missing = 0  # how many segments are not there in front of the first one that is
        self._dropped: list[tuple[int, Dropped]] = []
        self._findings: list[Finding] = []

    def see(self, row: _Row, following: _Row | None) -> None:
        if following is None and not row.raw.endswith(b"\n") and split(row.raw[:-1] + b"\n") is None:
            self._incomplete = name_of(row.segment)
            return
        line, after = split(row.raw), split(following.raw) if following is not None else None
        if row.segment != self._segment:
            self._enter(row, line)
        self._records += 1
        self._unsigned += 1
        if line is None:
            self._find("changed", row, self._n + 1, "is not a line of an audit log any more")
            self._advance(self._n + 1, links_after(self._links, row.raw), sound=False)
        elif self._follows(line):
            self._accept(row, line)
        else:
            self._explain(row, line, after)

    def _follows(self, line: Line) -> bool:
        """Whether a line is right, as far as that can be known: nothing is known of what follows on a lost line."""
        return fits(self._links, line) if self._links else line.n == self._n + 1

    def _enter(self, row: _Row, line: Line | None) -> None:
        """A file begins. Where it should go on from is known by the file before it, or for the first by itself."""
        begin = mark(line, Begin) if line is not None else None
        skipped = range(self._segment + 1, row.segment)
        if not self._segment and row.segment > 1:
            self._missing = row.segment - 1
            self._jump(begin, line)
            self._first = Head(self._n, self._links[0] if self._links else START)
        elif skipped:
            last = f"{begin.last_n}" if begin is not None else "?"
            words = f"{_files(skipped)} missing, with the records {self._n + 1} to {last}"
            self._say(Finding("removed", name_of(skipped[0]), 0, self._n + 1, words))
            self._jump(begin, line)
        if begin is not None and begin.segment != row.segment:
            self._find("moved", row, self._n + 1, f"says that it begins segment {name_of(begin.segment)}")
        self._segment = row.segment

    def _jump(self, begin: Begin | None, line: Line | None) -> None:
        if begin is not None:
            self._advance(begin.last_n, (begin.follows.chain,))
            self._meet(begin.follows)
        elif line is not None:
            self._advance(line.n - 1, ())

    def _accept(self, row: _Row, line: Line) -> None:
        if self._sound and line.n != self._n + 1:
            self._find("changed", row, self._n + 1, f"is numbered {line.n} where {self._n + 1} belongs")
        if line.kind == Checkpoint.kind:
            self._check(row, line)
        elif dropped := mark(line, Dropped):
            self._dropped.append((line.n, dropped))
        self._meet(Head(line.n, line.chain))
        self._advance(line.n, (line.chain,))

    def _check(self, row: _Row, line: Line) -> None:
        """See whether a checkpoint's signature is the key's, over what is here."""
        checkpoint, signed = mark(line, Checkpoint), signed_part(line)
        before = next((link for link in self._links if digest(link, line.body) == line.chain), None)
        if before is None:
            return  # it follows on a line that is lost, so nobody can tell
        if checkpoint is None or signed is None or not self._key.holds(signed.signature, to_sign(before, signed.text)):
            since = f"the records {self._proven.n + 1} to {line.n}"
            words = f"is a checkpoint that was not signed with the key {self._key.id}: {since} may have been made anew"
            self._find("forged", row, line.n, words)
        elif not self._findings:
            self._proven, self._at, self._unsigned = Head(line.n, line.chain), checkpoint.at, 0

    def _explain(self, row: _Row, line: Line, after: Line | None) -> None:
        """Name what happened where a line does not follow on the one before."""
        here = self._n + 1
        if line.n == here or fits(self._links, _numbered(line, here)):
            self._find("changed", row, here, "was changed")
            self._advance(here, links_after(self._links, row.raw), sound=False)
        elif after is not None and after.n == here + 1:
            self._find("moved", row, line.n, f"stands in the place of record {here}")
            self._advance(here, ())
        elif line.n > here:
            gone = f"{here} is" if line.n == here + 1 else f"{here} to {line.n - 1} are"
            self._find("removed", row, here, f"comes too early: the records {gone} missing before it")
            self._advance(line.n, (line.chain,))
        else:
            self._find("moved", row, line.n, f"stands here behind record {self._n}")

    def _advance(self, n: int, links: tuple[bytes, ...], *, sound: bool = True) -> None:
        self._n, self._links, self._sound = n, links, sound

    def _meet(self, head: Head) -> None:
        if head in self._expect:
            self._met.add(head)

    def _find(self, what: What, row: _Row, n: int, words: str) -> None:
        name = name_of(row.segment)
        self._say(Finding(what, name, row.line, n, f"{name} line {row.line}: record {n} {words}"))

    def _say(self, finding: Finding) -> None:
        if len(self._findings) < _MOST_FINDINGS:
            self._findings.append(finding)
        else:
            self._more += 1

    def end(self, count: int) -> Report:
        if not count:
            self._say(Finding("empty", "", 0, 0, "there is no audit log"))
        dropped = self._judge_beginning()
        self._judge_heads()
        return Report(
            ok=not self._findings and self._proven.n > 0,
            proven=self._proven.n,
            head=str(self._proven) if self._proven.n else "",
            at=self._at,
            key_id=self._key.id,
            unsigned=self._unsigned,
            records=self._records,
            segments=count,
            dropped=dropped,
            incomplete=self._incomplete,
            findings=tuple(self._findings),
            more=self._more,
        )

    def _judge_beginning(self) -> int:
        """Where segments are missing at the front, see whether the log says, under a signature, that they were dropped.

        The number of the last record that was, or 0.
        """
        if not self._missing:
            return 0
        for n, dropped in self._dropped:
            same = (dropped.through, dropped.last_n, dropped.last_chain)
            proven = n <= self._proven.n or bool(self._findings)
            if proven and same == (self._missing, self._first.n, self._first.chain.hex()):
                return self._first.n
        gone = range(1, self._missing + 1)
        words = f"{_files(gone)} missing, and the log does not say that retention has dropped them"
        self._say(Finding("removed", name_of(1), 0, 1, words))
        return 0

    def _judge_heads(self) -> None:
        """Name the first head that contradicts the log, and what was cut off in front of the last one."""
        unmet = sorted(self._expect - self._met, key=lambda head: head.n)
        gone = [head.n for head in unmet if head.n < self._first.n]
        behind = [head.n for head in unmet if head.n > self._n]
        other = [head.n for head in unmet if self._first.n <= head.n <= self._n]
        if behind:
            words = f"the log ends with record {self._n}, so what came up to record {behind[-1]} was cut off"
            self._say(Finding("cut", name_of(self._segment) if self._segment else "", 0, self._n + 1, words))
        if gone and len(gone) == len(self._expect):
            words = f"record {gone[-1]} is of a segment that is not there any more, so its head proves nothing"
            self._say(Finding("removed", "", 0, gone[-1], f"{words}: expect a newer one"))
        if other:
            words = f"record {other[0]} is not the one whose head was kept: this log was changed and made anew"
            self._say(Finding("rebuilt", "", 0, other[0], words))


def _numbered(line: Line, n: int) -> Line:
    """The line as it would be with another number."""
    return Line(n, line.kind, _NUMBER.sub(b'{"n":%d' % n, line.body, count=1), line.chain)


def _files(numbers: range) -> str:
    if len(numbers) == 1:
        return f"segment {name_of(numbers[0])} is"
    return f"the segments {name_of(numbers[0])} to {name_of(numbers[-1])} are"
