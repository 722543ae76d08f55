"""Holds what engines have counted against what requests say, and explains the difference: pure arithmetic.

Of most requests it is known to the token what their engine must have counted. Of the others it is known within bounds:
an engine goes on for a moment when nobody reads any more, and tells the tokens of a request only at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tuneplex.journal import CRASHED, Finished, Tried
from tuneplex.records.counters import EngineCounters

__all__ = ["EDGE_S", "Bounds", "Line", "Reckoning", "Share"]

EDGE_S = 1.0
_DAY_MS = 86_400_000
_SURE = "over"
_NOTHING = frozenset(
    {"refused", "unreachable"}
)  # the engine has not begun, by its own word or for want of a connection
_LEFT = "client_gone"
_COMPLETE = "complete"
# A prompt that no engine has told was estimated at four bytes a token; none has more tokens than bytes and its frame.
_BYTES_PER_TOKEN = 4
_FRAME = 256


class Bounds(msgspec.Struct, frozen=True):
    """Tokens that an engine has counted: so many at least, and so many at most, or None if nobody can say."""

    least: int = 0
    most: int | None = 0

    def __add__(self, other: Bounds) -> Bounds:
        """Both together."""
        most = None if self.most is None or other.most is None else self.most + other.most
        return Bounds(self.least + other.least, most)

    def rest(self, counted: int) -> int:
        """What is left of a count: above 0 if it is more than these can be, below 0 if it is less, else 0."""
        if self.most is not None and counted > self.most:
            return counted - self.most
        return min(0, counted - self.least)


class Share(msgspec.Struct, frozen=True):
    """Attempts at requests that are of one class.

    Attributes:
        attempts: How many.
        prompt: Tokens of prompts that the engine has counted for them.
        completion: Tokens of replies.
    """

    attempts: int = 0
    prompt: Bounds = Bounds()
    completion: Bounds = Bounds()

    def __add__(self, other: Share) -> Share:
        """Both together."""
        return Share(self.attempts + other.attempts, self.prompt + other.prompt, self.completion + other.completion)


class Line(msgspec.Struct, frozen=True):
    """One start of an engine.

    Attributes:
        engine: Which start of which replica.
        replica: The replica.
        pool: Its pool.
        since: When it was seen first, Unix time.
        at: When it was asked last.
        prompt: Tokens that it has read between these.
        completion: Tokens that it has written.
        shares: What requests say, by class: `over`, `under_way`, `left`, `failed`, `crashed`, `edge`.
        prompt_rest: Tokens that this does not explain; below 0 if the engine has counted less.
        completion_rest: The same of replies.
        verdict: `exact`, `explained`, `cached`, `added_up` or `unexplained`.
    """

    engine: str
    replica: str
    pool: str
    since: float
    at: float
    prompt: int
    completion: int
    shares: dict[str, Share]
    prompt_rest: int
    completion_rest: int
    verdict: str

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be explained."""
        return self.verdict != "unexplained"


class Reckoning:
    """Takes the requests, one after the other, in any order.

    Args:
        counters: What the engines say.
        contexts: By pool, how many tokens a request can have there at most.
        added_up: The last day of which requests are only kept added up, of UTC since 1970.
    """

    def __init__(
        self, counters: Iterable[EngineCounters], contexts: Mapping[str, int], added_up: int | None = None
    ) -> None:
        self._engines = [_Engine(one, contexts.get(one.pool), added_up) for one in counters]
        self._by_replica: dict[str, list[_Engine]] = {}
        for engine in self._engines:
            self._by_replica.setdefault(engine.counters.replica, []).append(engine)

    def add(self, request: Finished, *, under_way: bool = False) -> None:
        """Take a request in; of one that is under way what is known of it by now."""
        for tried in request.attempts:
            for engine in self._by_replica.get(tried.replica, ()):
                engine.add(request, tried, under_way=under_way)

    def lines(self) -> tuple[Line, ...]:
        """What has come of it, one for each start of an engine."""
        return tuple(engine.line() for engine in self._engines)


class _Engine:
    """One start of an engine, and what requests say of it."""

    def __init__(self, counters: EngineCounters, context: int | None, added_up: int | None) -> None:
        self.counters = counters
        self._context = context
        self._since, self._at = counters.since / 1000, counters.at / 1000
        self._old = added_up is not None and counters.since // _DAY_MS <= added_up
        self._shares: dict[str, Share] = {}
        self._cached = 0

    def add(self, request: Finished, tried: Tried, *, under_way: bool) -> None:
        """Take an attempt in, unless it was at another time."""
        begin, end = tried.at, tried.at + tried.took_s
        if begin > self._at + EDGE_S or (not under_way and end < self._since):
            return
        kind, share = _share(request, tried, self._context, under_way=under_way)
        if begin < self._since or (not under_way and end > self._at - EDGE_S):
            kind, share = "edge", _from_nothing(share)
        self._shares[kind] = self._shares.get(kind, Share()) + share
        if kind == _SURE:
            self._cached += request.cached

    def line(self) -> Line:
        """What has come of it."""
        one, total = self.counters, sum(self._shares.values(), Share())
        prompt, completion = one.prompt - one.first_prompt, one.completion - one.first_completion
        rests = total.prompt.rest(prompt), total.completion.rest(completion)
        return Line(
            engine=one.engine,
            replica=one.replica,
            pool=one.pool,
            since=self._since,
            at=self._at,
            prompt=prompt,
            completion=completion,
            shares=self._shares,
            prompt_rest=rests[0],
            completion_rest=rests[1],
            verdict=self._verdict(*rests),
        )

    def _verdict(self, prompt_rest: int, completion_rest: int) -> str:
        if self._old:
            return "added_up"
        if not prompt_rest and not completion_rest:
            return "exact" if set(self._shares) <= {_SURE} else "explained"
        return "cached" if -self._cached <= prompt_rest < 0 and not completion_rest else "unexplained"


def _share(request: Finished, tried: Tried, context: int | None, *, under_way: bool) -> tuple[str, Share]:
    """The class of an attempt, and what its engine has counted for it."""
    if not under_way and tried.outcome in _NOTHING:
        return "failed", Share(1)
    if not under_way and _is_sure(request, tried):
        return _SURE, Share(1, Bounds(tried.prompt, tried.prompt), Bounds(tried.completion, tried.completion))
    most = None if context is None else max(context, tried.completion)
    share = Share(1, Bounds(0, _prompt_most(tried.prompt, context)), Bounds(tried.completion, most))
    if under_way:
        return "under_way", _from_nothing(share)
    kinds = {CRASHED: "crashed", _LEFT: "left"}
    return kinds.get(tried.outcome, "failed"), share if len(request.attempts) == 1 else _from_nothing(share)


def _is_sure(request: Finished, tried: Tried) -> bool:
    """It has come to its end, the engine has told its tokens, and no other attempt has any part in them."""
    others = (one for one in request.attempts if one is not tried)
    return tried.outcome == _COMPLETE and not request.estimated and not any(one.completion for one in others)


def _prompt_most(prompt: int, context: int | None) -> int:
    guessed = prompt * _BYTES_PER_TOKEN + _FRAME
    return guessed if context is None else min(guessed, max(context, prompt))


def _from_nothing(share: Share) -> Share:
    """The same, and the engine may have counted nothing of it yet, or before it was seen first."""
    prompt, completion = share.prompt, share.completion
    return Share(share.attempts, Bounds(0, prompt.most), Bounds(0, completion.most))
