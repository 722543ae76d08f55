"""The ids of a request's spans, made from its number in a journal, so that whoever needs one makes the same."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

import msgspec

__all__ = ["WAITING", "Parent", "parent_of", "span_id", "trace_id"]

WAITING = -1  # in the place of an attempt's number; 0 stands for the request itself
_IDS = r"(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
_PARENT = re.compile(rf"(?!ff)(?P<version>[0-9a-f]{{2}})-{_IDS}(?P<more>-[!-~]{{1,64}})?")
_SAMPLED = 1
_ATTEMPTS = 1024  # more than any request has
_LARGEST = 2**64 - 1


class Parent(msgspec.Struct, frozen=True):
    """What a client says of its trace.

    Attributes:
        trace: The trace's id, 16 bytes.
        span: The id of the client's span, 8 bytes.
        sampled: The client keeps its trace.
    """

    trace: bytes
    span: bytes
    sampled: bool


def span_id(journal: str, number: int, attempt: int) -> int:
    """The id of a span: numbers that follow each other, from one that is the journal's own. Gateways make it often.

    Args:
        journal: The journal's name.
        number: Of the request, in this journal.
        attempt: Of the request, from 1; 0 for the request itself, or `WAITING`.
    """
    return (_first(journal) + number * _ATTEMPTS + attempt) & _LARGEST


@lru_cache(maxsize=64)
def _first(journal: str) -> int:
    return int.from_bytes(blake2b(journal.encode(), digest_size=8).digest())


def trace_id(journal: str, number: int) -> bytes:
    """The id of the trace of a request whose client has none, 16 bytes."""
    return blake2b(f"{journal}/{number}".encode(), digest_size=16).digest()


def parent_of(trace: str) -> Parent | None:
    """What a `traceparent` says; None where it makes no sense, or is empty."""
    found = _PARENT.fullmatch(trace)
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    sampled = bool(int(found["flags"], 16) & _SAMPLED)
    return Parent(bytes.fromhex(found["trace"]), bytes.fromhex(found["span"]), sampled)
