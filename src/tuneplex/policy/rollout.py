"""Whether an adapter's new version stays: it is held against the old one on traffic that both have had.

Each metric has a margin. The new version is *worse* if it is beyond the margin of any metric, and not worse if it is
within all of them. It is rolled back when one metric has been shown to be beyond, and promoted when all have been shown
to be within, by the tests of `sequential`, which may be looked at after every request.

So there are two errors, each with a chance of at most `alpha` over all looks and all metrics. A version that is not
worse is rolled back if any of the tests errs: each gets an equal part of alpha (Bonferroni). A version that is worse is
promoted only if the test of a metric in which it is worse errs, whichever others it passes: each test may have the
whole of alpha (the intersection-union test; Berger 1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from tuneplex.policy.sequential import Hits, Moments, evidence_above, evidence_below, mean_bounds

__all__ = ["Evidence", "Figures", "Terms", "Verdict", "at_the_end", "judge"]

_METRICS = 5  # that a version can be rolled back for; the number is fixed, so that looking at fewer is no choice
_VALUES = 50  # of each version, before a mean says anything: its test is exact only for many
_RARE = 20  # a metric that fewer than one in so many requests has is not waited for
_GUESS = 10  # values, when the time is over and a guess must do
_GUESS_SCORES = 3  # of these, as somebody has asked for them and each takes two whole answers


class Figures(msgspec.Struct, frozen=True):
    """What is known of one version since the rollout began, from traffic that both versions could have had.

    Attributes:
        requests: That ended well or with an error that counts.
        errors: Those with an error.
        ttft: Natural logarithms of the seconds to the first token.
        tpot: Natural logarithms of the seconds for each further token.
        length: Natural logarithms of the tokens of a reply, plus one.
    """

    requests: int = 0
    errors: int = 0
    ttft: Moments = Moments()
    tpot: Moments = Moments()
    length: Moments = Moments()

    @property
    def failed(self) -> Hits:
        """How many of the requests had an error."""
        return Hits(self.requests, self.errors)


class Terms(msgspec.Struct, frozen=True):
    """What "not worse" means, and how sure of it one must be. The defaults suit a chat service.

    Attributes:
        alpha: The chance that a version is rolled back that is not worse, and the chance that one is promoted that
            is: each over all looks and all metrics together. Between 0 and 0.5.
        errors: By how much the share of errors may be higher: 0.02 is two of a hundred requests. Between 0 and 1.
        ttft: How many times as long the time to the first token may be (geometric means). Above 1.
        tpot: The same of the time for each further token. Above 1.
        length: How many times as long, or as short, replies may be (geometric means). Above 1.
        score: By how much the mean score may be lower, in the hook's own units. Above 0.
        least: Requests of each version before anything is decided, 0 or more. Only errors need not wait so long to
            roll a version back: their test is exact from the first request on, and a version may be broken.

    Raises:
        ValueError: One of them is outside of its range.
    """

    alpha: float = 0.05
    errors: float = 0.02
    ttft: float = 1.25
    tpot: float = 1.25
    length: float = 1.5
    score: float = 0.05
    least: int = 100

    def __post_init__(self) -> None:
        ranges = {
            "alpha": (0, self.alpha, 0.5),
            "errors": (0, self.errors, 1),
            "ttft": (1, self.ttft, math.inf),
            "tpot": (1, self.tpot, math.inf),
            "length": (1, self.length, math.inf),
            "score": (0, self.score, math.inf),
            "least": (-1, self.least, math.inf),
        }
        for name, (low, value, high) in ranges.items():
            if not low < value < high:
                raise ValueError(f"{name} is {value}; it must be above {low} and below {high}")


class Evidence(msgspec.Struct, frozen=True):
    """All that a decision stands on.

    Attributes:
        old: Of the version that is there.
        new: Of the one that comes.
        score: Differences new - old of the scores of the same prompts; None without a score hook.
    """

    old: Figures
    new: Figures
    score: Moments | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What shall be done.

    Attributes:
        decision: What.
        why: One sentence for people, with the figures that decided.
    """

    decision: Literal["go on", "promote", "roll back"]
    why: str


_State = Literal["worse", "within", "open", "left out"]


class _Finding(msgspec.Struct, frozen=True):
    """What is known of one metric.

    Attributes:
        state: What the test says; "left out" if there is too little for one and will be.
        beyond: The estimate, right or wrong, is beyond the margin.
        figures: `errors 1.0 % of 812 requests against 0.9 % of 7310`.
        margin: `2 points`.
    """

    state: _State
    beyond: bool
    figures: str
    margin: str


class _Pair(msgspec.Struct, frozen=True):
    """The means of one metric.

    Attributes:
        name: Of the metric.
        new: Of the new version.
        old: Of the old one.
        margin: The ratio of their geometric means that matters.
        both: Less is no better than more.
    """

    name: str
    new: Moments
    old: Moments
    margin: float
    both: bool = False

    @property
    def least(self) -> int:
        """Values of the version that has fewer."""
        return min(self.new.count, self.old.count)


def judge(evidence: Evidence, terms: Terms) -> Verdict:
    """Decide if it can be decided. May be asked at any time and as often as somebody likes."""
    findings = _findings(evidence, terms)
    requests = min(evidence.new.requests, evidence.old.requests)
    early = requests < terms.least
    worse = [one for one in (findings[:1] if early else findings) if one.state == "worse"]
    if worse:
        return Verdict("roll back", f"The new version is worse: {_listed(worse, 'surely')}.")
    if early:
        which = "new" if evidence.new.requests == requests else "old"
        of = f"{requests} of at least {terms.least} requests"
        return Verdict("go on", f"Not decided yet: {of} went to the {which} version.")
    undecided = [one for one in findings if one.state == "open"]
    if undecided:
        return Verdict("go on", f"Not decided yet: {_listed(undecided, 'maybe')}.")
    return Verdict("promote", f"The new version is not worse: {_all_of(findings)}.")


def at_the_end(evidence: Evidence, terms: Terms) -> Verdict:
    """Decide by what is known, as the time that was given is over; a version is rolled back only if it looks worse."""
    verdict = judge(evidence, terms)
    if verdict.decision != "go on":
        return verdict
    findings = _findings(evidence, terms)
    over = "The time is over before the test has decided, and"
    if not evidence.new.requests:
        return Verdict("promote", f"{over} no request went to the new version, so nothing speaks against it.")
    beyond = [one for one in findings if one.beyond]
    if beyond:
        return Verdict("roll back", f"{over} the new version looks worse: {_listed(beyond)}.")
    return Verdict("promote", f"{over} the new version does not look worse: {_all_of(findings)}.")


# --- each metric by itself


def _findings(evidence: Evidence, terms: Terms) -> list[_Finding]:
    """Errors first."""
    old, new = evidence.old, evidence.new
    findings = [
        _errors(new.failed, old.failed, terms),
        _mean(_Pair("TTFT", new.ttft, old.ttft, terms.ttft), evidence, terms),
        _mean(_Pair("TPOT", new.tpot, old.tpot, terms.tpot), evidence, terms),
        _mean(_Pair("length", new.length, old.length, terms.length, both=True), evidence, terms),
    ]
    return findings if evidence.score is None else [*findings, _score(evidence.score, terms)]


def _errors(new: Hits, old: Hits, terms: Terms) -> _Finding:
    state: _State = "open"
    if evidence_above(new, old, terms.errors) >= math.log(_METRICS / terms.alpha):
        state = "worse"
    elif evidence_below(new, old, terms.errors) >= -math.log(terms.alpha):
        state = "within"
    return _Finding(
        state=state,
        beyond=new.rate - old.rate > terms.errors,
        figures=f"errors {_percent(new)} requests against {_percent(old)}",
        margin=f"{100 * terms.errors:g} points",
    )


def _mean(pair: _Pair, evidence: Evidence, terms: Terms) -> _Finding:
    difference, margin = pair.new.mean - pair.old.mean, math.log(pair.margin)
    text, unit = (_tokens, " tokens") if pair.both else (_seconds, "")
    return _Finding(
        state=_too_few(pair, evidence) or _state(pair.new, pair.old, margin, terms.alpha, both=pair.both),
        beyond=pair.least >= _GUESS and (abs(difference) if pair.both else difference) > margin,
        figures=f"{pair.name} x{math.exp(difference):.2f} ({text(pair.new)} against {text(pair.old)}{unit})",
        margin=f"x{pair.margin:g}",
    )


def _score(differences: Moments, terms: Terms) -> _Finding:
    lower = msgspec.structs.replace(differences, mean=-differences.mean)
    # Somebody has asked for scores, so they are waited for, however few there are.
    state = "open" if lower.count < _VALUES else _state(lower, None, terms.score, terms.alpha)
    return _Finding(
        state=state,
        beyond=lower.count >= _GUESS_SCORES and lower.mean > terms.score,
        figures=f"score {differences.mean:+.3g} in {differences.count} pairs",
        margin=f"{terms.score:g}",
    )


def _too_few(pair: _Pair, evidence: Evidence) -> Literal["open", "left out"] | None:
    """What a metric is without a test, or None if there are enough values for one."""
    if pair.least >= _VALUES:
        return None
    old, new = evidence.old.requests, evidence.new.requests
    return "left out" if pair.old.count * _RARE < old or pair.new.count * _RARE < new else "open"


def _state(new: Moments, old: Moments | None, margin: float, alpha: float, *, both: bool = False) -> _State:
    """What the test says of a mean: beyond at an equal part of alpha, within at the whole of it."""
    sure = mean_bounds(new, old, margin, alpha / (2 * _METRICS if both else _METRICS))
    if sure.low > margin or (both and sure.high < -margin):
        return "worse"
    bounds = mean_bounds(new, old, margin, alpha)
    return "within" if bounds.high < margin and not (both and bounds.low <= -margin) else "open"


# --- words


def _listed(findings: Sequence[_Finding], how: str = "") -> str:
    """The figures of each and its margin."""
    return "; ".join(f"{one.figures}, {how} beyond the margin of {one.margin}".replace("  ", " ") for one in findings)


def _all_of(findings: Sequence[_Finding]) -> str:
    """The figures of those that were compared, and how many were not."""
    compared = ", ".join(one.figures for one in findings if one.state != "left out")
    rest = ", ".join(one.figures.split(" ", 1)[0] for one in findings if one.state == "left out")
    return f"{compared}; too few values to compare {rest}" if rest else compared


def _percent(seen: Hits) -> str:
    return f"{100 * seen.rate:.3g} % of {seen.count}"


def _seconds(values: Moments) -> str:
    seconds = math.exp(values.mean)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _tokens(values: Moments) -> str:
    return f"{math.expm1(values.mean):.4g}"
