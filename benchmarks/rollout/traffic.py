"""Traffic of two versions as `judge` sees it, made up: heavy tails, rare errors, and figures after each batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from operator import mul

import msgspec

from tuneplex.policy.rollout import Evidence, Figures, Terms, Verdict, judge
from tuneplex.policy.sequential import Moments

__all__ = ["END", "Case", "End", "Metrics", "play"]

_POOL = 20_000  # values that are drawn from; what is true of them is true exactly
# Logarithms. TTFT: lognormal, and every tenth request queues, some for very long. TPOT: lognormal, with hiccups.
# Length: a third of the replies are a few words, the others a few hundred.
_TTFT, _TPOT, _LENGTH = 0, 1, 2


class Metrics(msgspec.Struct, frozen=True):
    """What is true of one version.

    Attributes:
        errors: The chance of an error.
        ttft: By how much the mean logarithm of the time to the first token is longer than usual.
        tpot: The same of the time for each further token.
        length: The same of the tokens of a reply.
        score: By how much the score differs from that of the old version.
    """

    errors: float = 0.01
    ttft: float = 0.0
    tpot: float = 0.0
    length: float = 0.0
    score: float = 0.0


class Case(msgspec.Struct, frozen=True):
    """One kind of rollout.

    Attributes:
        name: For the table.
        old: What is true of the old version.
        new: What is true of the new one.
        share: Of the requests that the new one gets.
        requests: Of both together, after which it is given up.
        batch: Requests between two looks.
        streams: The share of requests that have a TTFT and a TPOT.
        scored: Whether there is a score hook; it scores every request of the new version.
        kinds: How the values are spread: `heavy` or `rare` (all the same but for a few that are far off).
    """

    name: str
    old: Metrics = Metrics()
    new: Metrics = Metrics()
    share: float = 0.1
    requests: int = 8_000
    batch: int = 100
    streams: float = 1.0
    scored: bool = True
    kinds: str = "heavy"


class End(msgspec.Struct, frozen=True):
    """How a rollout ended.

    Attributes:
        verdict: The last one.
        new: Requests of the new version until then.
    """

    verdict: Verdict
    new: int


END = ("promote", "roll back", "go on")


def play(case: Case, terms: Terms, seed: int) -> End:
    """Look after each batch until it is decided or given up."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    pools = _pools(case.kinds)
    old, new = _Version(case, case.old, pools, chance), _Version(case, case.new, pools, chance)
    scores = _Sums(_centred([chance.gauss(0.0, 0.3) for _ in range(_POOL // 20)]), case.new.score)
    verdict, had = Verdict("go on", ""), 0.0
    for _ in range(case.requests // case.batch):
        had += case.share * case.batch
        taken, had = int(had), had - int(had)
        new.serve(taken)
        old.serve(case.batch - taken)
        scores.draw(taken, chance)
        verdict = judge(Evidence(old.figures, new.figures, scores.moments if case.scored else None), terms)
        if verdict.decision != "go on":
            break
    return End(verdict, new.requests)


class _Sums:
    """Values that are drawn, moved by a shift, and added up."""

    def __init__(self, pool: Sequence[float], shift: float) -> None:
        self._pool, self._shift = pool, shift
        self._count, self._total, self._squares = 0, 0.0, 0.0

    def draw(self, count: int, chance: random.Random) -> None:
        """So many more."""
        values = chance.choices(self._pool, k=count)
        self._count += count
        self._total += sum(values)
        self._squares += sum(map(mul, values, values))

    @property
    def moments(self) -> Moments:
        """Of all that were drawn."""
        unmoved = Moments.of(self._count, self._total, self._squares)
        return msgspec.structs.replace(unmoved, mean=unmoved.mean + self._shift)


class _Version:
    """One version that serves requests."""

    def __init__(self, case: Case, metrics: Metrics, pools: Sequence[Sequence[float]], chance: random.Random) -> None:
        shifts = (metrics.ttft, metrics.tpot, metrics.length)
        self._sums = [_Sums(pool, shift) for pool, shift in zip(pools, shifts, strict=True)]
        self._errors, self._streams, self._chance = metrics.errors, case.streams, chance
        self.requests = self._failed = 0

    def serve(self, requests: int) -> None:
        """So many more."""
        failed = _happens(requests, self._errors, self._chance)
        streams = _happens(requests - failed, self._streams, self._chance)
        self.requests += requests
        self._failed += failed
        for place, count in ((_TTFT, streams), (_TPOT, streams), (_LENGTH, requests - failed)):
            self._sums[place].draw(count, self._chance)

    @property
    def figures(self) -> Figures:
        """Of all so far."""
        ttft, tpot, length = (sums.moments for sums in self._sums)
        return Figures(self.requests, self._failed, ttft, tpot, length)


def _happens(times: int, probability: float, chance: random.Random) -> int:
    if probability in {0.0, 1.0}:
        return int(times * probability)
    return sum(chance.random() < probability for _ in range(times))


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def _pools(kinds: str) -> tuple[Sequence[float], ...]:
    """Logarithms of TTFT, TPOT and length whose means are 0; the same ones each time."""
    if kinds not in _MADE:
        raise ValueError(f"{kinds} is neither of {', '.join(_MADE)}")
    return _MADE[kinds]


def _heavy() -> Iterator[list[float]]:
    draw = random.Random(1)  # noqa: S311 - a simulation
    yield [draw.gauss(0, 0.5) + (draw.expovariate(0.6) if place % 10 == 0 else 0.0) for place in range(_POOL)]
    yield [draw.gauss(0, 0.2) + (draw.expovariate(1.0) if place % 50 == 0 else 0.0) for place in range(_POOL)]
    yield [draw.gauss(1.5, 0.5) if place % 3 == 0 else draw.gauss(5.0, 1.0) for place in range(_POOL)]


def _rare() -> Iterator[list[float]]:
    """All the same, but one in fifty is twenty times as much: the variance of the first few is 0."""
    for _ in range(3):
        yield [3.0 if place % 50 == 0 else 0.0 for place in range(_POOL)]


_MADE = {"heavy": tuple(map(_centred, _heavy())), "rare": tuple(map(_centred, _rare()))}
