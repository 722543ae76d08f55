"""The lines that hold the audit log together: where a segment begins, what is signed, what retention has dropped."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, TypeVar

import msgspec

from tuneplex.records.audit.chain import Head, Line

__all__ = ["EVENT", "Begin", "Checkpoint", "Dropped", "Signed", "SignedHead", "mark", "signed_part", "to_sign"]

EVENT = "event"
_DOMAIN = b"tuneplex audit checkpoint, format 1\n"
_SIGNED = re.compile(rb'(.*),"signature":"([0-9a-f]{128})"', re.DOTALL)
_M = TypeVar("_M", "Begin", "Checkpoint", "Dropped")
_Chain = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a segment.

    Attributes:
        at: When it was begun, Unix time in seconds.
        segment: Its number, from 1.
        last_n: The number of the last line of the segment before, a checkpoint; 0 in the first one.
        last_chain: That line's chain value as hexadecimal digits.
        key_id: The public key that checks the log's signatures.
        positions: Of each source, the number of its last event in the log.
        format: How the log is written; there is only 1.
    """

    kind: ClassVar[str] = "begin"
    at: float
    segment: int
    last_n: int
    last_chain: _Chain
    key_id: str
    positions: dict[str, int]
    format: int = 1

    @property
    def follows(self) -> Head:
        """The place of the chain that the segment goes on from."""
        return Head(self.last_n, bytes.fromhex(self.last_chain))


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A signature over all of the log up to here.

    Attributes:
        at: When it was signed, Unix time in seconds.
        positions: Of each source, the number of its last event in the log.
        key_id: The public key that checks it.
    """

    kind: ClassVar[str] = "checkpoint"
    at: float
    positions: dict[str, int]
    key_id: str


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Retention: the segments up to this one are gone, and that is right.

    Attributes:
        at: When they were dropped, Unix time in seconds.
        through: The number of the last segment that was.
        last_n: The number of its last line.
        last_chain: That line's chain value as hexadecimal digits.
    """

    kind: ClassVar[str] = "dropped"
    at: float
    through: int
    last_n: int
    last_chain: _Chain


class SignedHead(msgspec.Struct, frozen=True):
    """A checkpoint as it is kept elsewhere.

    Attributes:
        n: The number of its line.
        chain: That line's chain value as hexadecimal digits.
        at: When it was signed, Unix time in seconds.
        key_id: The public key that checks it.
    """

    n: int
    chain: str
    at: float
    key_id: str

    @property
    def head(self) -> Head:
        """The place of the chain."""
        return Head(self.n, bytes.fromhex(self.chain))


class Signed(msgspec.Struct, frozen=True):
    """What a checkpoint's line says, in the two parts that its signature is about.

    Attributes:
        text: The line's bytes in front of the signature.
        signature: The signature.
    """

    text: bytes
    signature: bytes


def mark(line: Line, kind: type[_M]) -> _M | None:
    """What a line says if it is such a mark, else None."""
    if line.kind != kind.kind:
        return None
    try:
        return msgspec.json.decode(line.body + b"}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def to_sign(previous: bytes, text: bytes) -> bytes:
    """What is signed: the chain value of the line before, so all that is in the log, and what the checkpoint says."""
    return _DOMAIN + previous + text


def signed_part(line: Line) -> Signed | None:
    """The parts of a checkpoint's line, or None where it has not the form of one."""
    found = _SIGNED.fullmatch(line.body)
    return None if found is None else Signed(found[1], bytes.fromhex(found[2].decode()))
