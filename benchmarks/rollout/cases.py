"""What is simulated: versions that are not worse, versions that just are, and clear harm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from benchmarks.rollout.traffic import Case, End, Metrics, play
from tuneplex.policy.rollout import Terms

__all__ = ["ALLOWED", "HARM", "JUST_WORSE", "NOT_WORSE", "Counts", "count", "most_by_chance"]

_TERMS = Terms()
_TTFT, _TPOT, _LENGTH = (math.log(margin) for margin in (_TERMS.ttft, _TERMS.tpot, _TERMS.length))
_NONE = Metrics(errors=0.0)
_LONG = 10_000  # requests; longer runs are looked at less often
_ALL = Metrics(0.01 + _TERMS.errors, _TTFT, _TPOT, _LENGTH, -_TERMS.score)


def _errors(rate: float, more: float = _TERMS.errors, share: float = 0.1, requests: int = 8_000) -> Case:
    shown = f"errors {100 * rate:g} % -> {100 * (rate + more):g} %, share {100 * share:g} %"
    batch = 400 if requests > _LONG else 100
    return Case(shown, Metrics(rate), Metrics(rate + more), share, requests, batch)


def _mean(name: str, new: Metrics, **others: float | str) -> Case:
    """No errors, so that nothing but this metric can hold a promotion up."""
    return msgspec.structs.replace(Case(name, _NONE, new), **others)


# A rollback is an error. At the margin a version is not worse, only just.
NOT_WORSE = (
    Case("no difference, share 1 %", share=0.01, requests=40_000, batch=400),
    Case("no difference, share 10 %"),
    Case("no difference, share 50 %", share=0.5),
    Case("no difference, one stream in ten", streams=0.1),
    Case("no difference, a look after every 5 requests", batch=5, requests=3_000),
    Case("all five at their margins, share 1 %", new=_ALL, share=0.01, requests=40_000, batch=400),
    Case("all five at their margins, share 10 %", new=_ALL),
    Case("all five at their margins, share 50 %", new=_ALL, share=0.5),
    Case("all five at their margins, means of rare values", new=_ALL, kinds="rare"),
    _errors(0.001),
    _errors(0.2),
)
# A promotion is an error: a version whose metric is at its margin is worse, only just.
JUST_WORSE = (
    _errors(0.001, share=0.01, requests=40_000),
    _errors(0.001),
    _errors(0.001, share=0.5),
    _errors(0.01),
    _errors(0.2),
    _errors(0.2, share=0.5),
    _mean("TTFT x1.25", Metrics(0.0, ttft=_TTFT)),
    _mean("TTFT x1.25, share 50 %", Metrics(0.0, ttft=_TTFT), share=0.5),
    _mean("TTFT x1.25, one stream in ten", Metrics(0.0, ttft=_TTFT), streams=0.1),
    _mean("TPOT x1.25", Metrics(0.0, tpot=_TPOT)),
    _mean("length x1.5", Metrics(0.0, length=_LENGTH)),
    _mean("length x1/1.5", Metrics(0.0, length=-_LENGTH)),
    _mean("score 0.05 lower", Metrics(0.0, score=-_TERMS.score)),
    _mean("TTFT x1.25, means of rare values", Metrics(0.0, ttft=_TTFT), kinds="rare"),
)
# How long it takes to roll back, and in `ALLOWED` to promote.
HARM = (
    _errors(0.0, 1.0),
    _errors(0.01, 0.29),
    _errors(0.01, 0.09),
    _errors(0.01, 0.04, requests=30_000),
    _errors(0.01, 0.09, share=0.01, requests=40_000),
    _errors(0.01, 0.09, share=0.5),
    Case("TTFT x2", new=Metrics(ttft=math.log(2))),
    Case("TTFT x1.5", new=Metrics(ttft=math.log(1.5)), requests=30_000, batch=400),
    Case("TPOT x1.5", new=Metrics(tpot=math.log(1.5))),
    Case("length x3", new=Metrics(length=math.log(3))),
    Case("length x1/3", new=Metrics(length=-math.log(3))),
    Case("score 0.2 lower", new=Metrics(score=-0.2)),
)
ALLOWED = (
    Case("no difference, no errors", _NONE, _NONE),
    Case("no difference, errors 0.1 %", Metrics(0.001), Metrics(0.001)),
    Case("no difference, errors 1 %", requests=30_000, batch=400),
    Case("no difference, errors 1 %, share 50 %", share=0.5),
    Case("no difference, errors 5 %", Metrics(0.05), Metrics(0.05), requests=60_000, batch=400),
    Case("all better: errors 2 % -> 1 %, x0.8, score +0.1", Metrics(0.02), Metrics(0.01, -0.22, -0.22, 0.0, 0.1)),
)


class Counts(msgspec.Struct, frozen=True):
    """How many of the runs of a case ended how.

    Attributes:
        case: Its name.
        runs: All.
        promoted: So many.
        rolled_back: So many.
        half: Requests of the new version by which half of the runs were decided; None if fewer were.
        most: The same of nine tenths.
    """

    case: str
    runs: int
    promoted: int
    rolled_back: int
    half: int | None
    most: int | None


def count(case: Case, seeds: Sequence[int]) -> Counts:
    """Play a case once with each seed."""
    ends = [play(case, _TERMS, seed) for seed in seeds]
    decided = sorted(end.new for end in ends if end.verdict.decision != "go on")
    return Counts(
        case=case.name,
        runs=len(ends),
        promoted=_with("promote", ends),
        rolled_back=_with("roll back", ends),
        half=_by(0.5, decided, len(ends)),
        most=_by(0.9, decided, len(ends)),
    )


def most_by_chance(runs: int, alpha: float, doubt: float = 0.001) -> int:
    """The most errors of so many runs that a test with this error rate makes but for one time in 1/`doubt`."""
    below, least = 0.0, 0
    while True:
        below += math.comb(runs, least) * alpha**least * (1 - alpha) ** (runs - least)
        if below >= 1 - doubt:
            return least
        least += 1


def _with(decision: str, ends: Sequence[End]) -> int:
    return sum(end.verdict.decision == decision for end in ends)


def _by(part: float, decided: Sequence[int], runs: int) -> int | None:
    place = math.ceil(part * runs) - 1
    return decided[place] if place < len(decided) else None
