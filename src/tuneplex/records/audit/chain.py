"""The chain of the audit log: each line ends with a hash over itself and all lines before it. Pure, over bytes.

::

    {"n":17,"kind":"event", … ,"chain":"<hex>"}

`chain` is the SHA-256 of the 32 bytes of the chain value of the line before and of this line's bytes in front of
`,"chain":`. The first line of a log follows on 32 zero bytes. `n` grows by one from line to line, over all segments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["MOST_LINE", "START", "Head", "Line", "body", "digest", "fits", "links_after", "seal", "split"]

START = bytes(32)
"""What the first line of a log follows on."""
MOST_LINE = 4 * 1024 * 1024
"""Bytes of a line; nothing that we write comes near it."""

_OPENING = re.compile(rb'\{"n":([1-9][0-9]{0,17}),"kind":"([a-z]+)"')
_ENDING = re.compile(rb',"chain":"([0-9a-f]{64})"\}')
_ENDING_LENGTH = len(',"chain":""}') + 64
_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Head:
    """A place of the chain: whoever keeps it can tell later whether all up to there is still the same.

    Attributes:
        n: The number of a line.
        chain: Its chain value.
    """

    n: int
    chain: bytes

    def __str__(self) -> str:
        return f"{self.n}:{self.chain.hex()}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read what `str` wrote.

        Raises:
            ValueError: It is no head.
        """
        found = _HEAD.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a head, as 17:2cf24d…")
        return cls(int(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class Line:
    """A line that has the form of one; whether its chain value is right is another question.

    Attributes:
        n: Its number.
        kind: What it is: `event`, or one of `marks`.
        body: Its bytes in front of `,"chain":`.
        chain: Its chain value.
    """

    n: int
    kind: str
    body: bytes
    chain: bytes


def body(n: int, kind: str, members: bytes) -> bytes:
    """The beginning of a line, up to its chain value.

    Args:
        n: Its number.
        kind: What it is, in small letters.
        members: The JSON object with all that it says.
    """
    start = b'{"n":%d,"kind":"%s"' % (n, kind.encode())
    return start if members == b"{}" else start + b"," + members[1:-1]


def digest(previous: bytes, body: bytes) -> bytes:
    """The chain value of a line that follows on `previous`."""
    return hashlib.sha256(previous + body).digest()


def seal(previous: bytes, body: bytes) -> tuple[bytes, bytes]:
    """The whole line with its newline, and its chain value."""
    chain = digest(previous, body)
    return b'%s,"chain":"%s"}\n' % (body, chain.hex().encode()), chain


def split(raw: bytes) -> Line | None:
    """The parts of a line, or None where it has not the form of one. A newline at its end is part of the form."""
    opening, ending = _OPENING.match(raw), _ending(raw)
    if opening is None or ending is None or not raw.endswith(b"\n") or ending.start() < opening.end():
        return None
    return Line(int(opening[1]), opening[2].decode(), raw[: ending.start()], bytes.fromhex(ending[1].decode()))


def _ending(raw: bytes) -> re.Match[bytes] | None:
    return _ENDING.fullmatch(raw, max(0, len(raw) - 1 - _ENDING_LENGTH), len(raw) - 1)


def fits(links: Iterable[bytes], line: Line) -> bool:
    """Whether a line follows on one of these chain values."""
    return any(digest(link, line.body) == line.chain for link in links)


def links_after(links: Iterable[bytes], raw: bytes) -> tuple[bytes, ...]:
    """What may follow on a line that is not as it was: the chain value that it has, or the one that it should have.

    The one is right when its text was changed, the other when its chain value was. So one changed line does not make
    the next one look changed, too.
    """
    ending = _ending(raw)
    should = tuple(digest(link, raw[: -1 - _ENDING_LENGTH]) for link in links)
    return should if ending is None else (bytes.fromhex(ending[1].decode()), *should)
