"""What a client is told of why its request took so long: the words of `x-tuneplex-why`."""

from __future__ import annotations

import msgspec

__all__ = ["HEADER", "Tokens", "Told", "Tried"]

HEADER = "x-tuneplex-why"


class Tried(msgspec.Struct, omit_defaults=True):
    """One attempt at the request.

    Attributes:
        replica: Where it went.
        after_s: How long after the request came.
        beside: Requests that this gateway had there already.
        ended: How it ended, as `policy.End` has it, or `answers` for the one whose reply this is; empty if neither.
        took_s: How long it took, if it has ended.
        goes_on: It continued a stream that had broken off elsewhere.
        pool: The replica's pool, where it is told later.
        wrote: Tokens of the reply that came from there, where it is told later.
    """

    replica: str
    after_s: float
    beside: int
    ended: str = ""
    took_s: float | None = None
    goes_on: bool = False
    pool: str = ""
    wrote: int = 0


class Tokens(msgspec.Struct):
    """What the reply has taken, as `engines.Usage` has it."""

    prompt: int
    cached: int
    completion: int
    exact: bool


class Told(msgspec.Struct, omit_defaults=True):
    """What the client is told; seconds, from when the request came.

    Attributes:
        request_id: Which request.
        model: The version that it was for.
        took_s: Until all of the reply was there.
        waited_s: In the waiting room.
        waited_for: There; empty if it has not waited.
        counted_s: Until its tokens had been counted; 0 if that was not needed.
        first_token_s: Until the first event of a stream.
        attempts: At replicas, one after the other.
        tokens: As far as they are known.
    """

    request_id: str
    model: str
    took_s: float
    waited_s: float
    waited_for: str = ""
    counted_s: float = 0.0
    first_token_s: float | None = None
    attempts: list[Tried] = []
    tokens: Tokens | None = None
