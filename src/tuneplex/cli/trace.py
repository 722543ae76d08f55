"""What an export of traffic says: a head, then one line for each request, without names and prompts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from tuneplex.journal import Finished

__all__ = ["FORMAT", "VERSION", "TraceHead", "TraceRequest", "trace"]

FORMAT = "tuneplex-traffic"
VERSION = 1
_UNITS = {"at": "s after start", "prompt": "tokens", "cached": "tokens", "completion": "tokens", "took": "s"}
_encode = msgspec.json.Encoder().encode


class TraceHead(msgspec.Struct, frozen=True):
    """The first line.

    Attributes:
        format: Always `tuneplex-traffic`.
        version: Of the format; readers pass over fields that they do not know.
        start: Unix time, from which `at` is counted.
        end: Up to when requests are in it, Unix time.
        units: Of the fields that have one.
    """

    start: float
    end: float
    format: str = FORMAT
    version: int = VERSION
    units: dict[str, str] = msgspec.field(default_factory=_UNITS.copy)


class TraceRequest(msgspec.Struct, frozen=True):
    """Any other line: one request that an engine had, in the order in which they came.

    Attributes:
        at: When it came, seconds after `start`.
        prompt: Tokens of its prompt.
        cached: Those of them that the engine had in its prefix cache, where it told.
        completion: Tokens of the reply.
        model: The name of the model.
        tenant: Hashed.
        session: What it has in common with others of the same conversation, hashed; empty if nobody said so.
        stream: Whether events were wanted.
        route: By which route.
        outcome: How it has ended.
        took: Seconds from its coming to its end.
        estimated: No engine has told the tokens.
    """

    at: float
    prompt: int
    cached: int
    completion: int
    model: str
    tenant: str
    session: str
    stream: bool
    route: str
    outcome: str
    took: float
    estimated: bool


def trace(requests: Iterable[Finished], start: float, end: float, key: bytes) -> Iterator[tuple[float, bytes]]:
    """The lines, each with how far through the time it is, from 0 to 1.

    Args:
        requests: In the order in which they came.
        start: Unix time.
        end: Unix time.
        key: Of the hashes.
    """
    yield 0.0, _encode(TraceHead(start, end)) + b"\n"
    for one in requests:
        if one.attempts:
            yield (one.arrived - start) / max(end - start, 1e-9), _encode(_request(one, start, key)) + b"\n"


def _request(one: Finished, start: float, key: bytes) -> TraceRequest:
    return TraceRequest(
        at=round(one.arrived - start, 3),
        prompt=one.prompt,
        cached=one.cached,
        completion=one.completion,
        model=one.model,
        tenant=_hidden(key, "tenant", one.tenant),
        session=_hidden(key, "session", one.session),
        stream=one.stream,
        route=one.route,
        outcome=one.outcome,
        took=round(max(0.0, one.closed - one.arrived), 3),
        estimated=one.estimated,
    )


def _hidden(key: bytes, kind: str, name: str) -> str:
    """The same for the same name, and nothing that could be looked up."""
    return blake2b(name.encode(), key=key, person=kind.encode(), digest_size=8).hexdigest() if name else ""
