"""When a new version is promoted and when it is rolled back."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rollout.cases import ALLOWED, HARM, JUST_WORSE, NOT_WORSE, count, most_by_chance
from benchmarks.rollout.traffic import Case
from tuneplex.policy.rollout import Evidence, Figures, Terms, at_the_end, judge
from tuneplex.policy.sequential import Moments

TERMS = Terms()
FEW = 20
MANY = 300


def values(count: int, mean: float, deviation: float = 0.5) -> Moments:
    """As many values around a mean."""
    return Moments(count, mean, deviation**2 * max(0, count - 1))


def figures(
    requests: int,
    errors: int = 0,
    *,
    ttft: float = 0.5,
    tpot: float = 0.05,
    tokens: float = 100.0,
    streams: float = 1.0,
) -> Figures:
    """Of one version: typical seconds and tokens."""
    good = requests - errors
    timed = int(good * streams)
    return Figures(
        requests=requests,
        errors=errors,
        ttft=values(timed, math.log(ttft)),
        tpot=values(timed, math.log(tpot)),
        length=values(good, math.log1p(tokens)),
    )


OLD = figures(20_000, 100)
counted = st.integers(0, 5000)
means = st.builds(values, counted, st.floats(-3, 3), st.floats(0, 3))
versions = st.integers(0, 5000).flatmap(
    lambda requests: st.builds(Figures, st.just(requests), st.integers(0, requests), means, means, means)
)
evidences = st.builds(Evidence, versions, versions, st.none() | means)


def test_a_version_without_a_difference_is_promoted() -> None:
    """The sentence has the figures of all that was compared."""
    found = judge(Evidence(OLD, figures(2000, 10), values(500, 0.01, 0.2)), TERMS)
    assert found.decision == "promote"
    assert found.why == (
        "The new version is not worse: errors 0.5 % of 2000 requests against 0.5 % of 20000,"
        " TTFT x1.00 (500 ms against 500 ms), TPOT x1.00 (50 ms against 50 ms),"
        " length x1.00 (100 against 100 tokens), score +0.01 in 500 pairs."
    )


@pytest.mark.parametrize(
    "new, score, words",
    [
        (
            figures(2000, 200),
            None,
            "errors 10 % of 2000 requests against 0.5 % of 20000, surely beyond the margin of 2 points",
        ),
        (figures(2000, ttft=1.5), None, "TTFT x3.00 (1.5 s against 500 ms), surely beyond the margin of x1.25"),
        (figures(2000, tpot=0.1), None, "TPOT x2.00 (100 ms against 50 ms), surely beyond the margin of x1.25"),
        (figures(2000, tokens=10), None, "length x0.11 (10 against 100 tokens), surely beyond the margin of x1.5"),
        (figures(2000, tokens=900), None, "length x8.92 (900 against 100 tokens), surely beyond the margin of x1.5"),
        (figures(2000), values(500, -0.3, 0.2), "score -0.3 in 500 pairs, surely beyond the margin of 0.05"),
    ],
)
def test_harm_in_any_metric_rolls_back(new: Figures, score: Moments | None, words: str) -> None:
    """One metric is enough, and the sentence names it with its figures and its margin."""
    found = judge(Evidence(OLD, new, score), TERMS)
    assert (found.decision, found.why) == ("roll back", f"The new version is worse: {words}.")


@pytest.mark.parametrize(
    "new, score",
    [
        (figures(2000, 0, ttft=0.1, tpot=0.01), None),
        (figures(2000, 0, tokens=110), values(500, 0.4, 0.2)),
    ],
)
def test_a_better_version_is_promoted(new: Figures, score: Moments | None) -> None:
    """However much quicker, more right or better scored it is."""
    assert judge(Evidence(OLD, new, score), TERMS).decision == "promote"


def test_the_least_number_of_requests_is_waited_for() -> None:
    """Neither slowness nor wellness is believed before, in either version; the sentence says in which."""
    slow = figures(99, ttft=9.0)
    assert judge(Evidence(OLD, slow), TERMS).why == (
        "Not decided yet: 99 of at least 100 requests went to the new version."
    )
    assert judge(Evidence(slow, OLD), TERMS).why == (
        "Not decided yet: 99 of at least 100 requests went to the old version."
    )
    assert judge(Evidence(OLD, figures(100, ttft=9.0)), TERMS).decision == "roll back"


def test_a_broken_version_goes_at_once() -> None:
    """Errors need not wait for the least number: a handful of requests that all fail is enough."""
    assert judge(Evidence(figures(45), figures(5, 5)), TERMS).decision == "roll back"
    assert judge(Evidence(figures(45), figures(5, 1)), TERMS).decision == "go on"


def test_what_is_open_is_named() -> None:
    """While something may still be beyond its margin, nothing is promoted, and the sentence says what."""
    found = judge(Evidence(OLD, figures(2000, 60)), TERMS)
    assert found.decision == "go on"
    assert found.why == (
        "Not decided yet: errors 3 % of 2000 requests against 0.5 % of 20000, maybe beyond the margin of 2 points."
    )


def test_a_metric_that_nobody_has_is_left_out() -> None:
    """Without streams there are no times to compare; the sentence says so, and errors are never left out."""
    found = judge(Evidence(figures(20_000, streams=0), figures(2000, streams=0)), TERMS)
    assert found.decision == "promote"
    assert found.why.endswith("; too few values to compare TTFT, TPOT.")
    failing = Evidence(figures(2000, 2000), figures(2000, 2000))
    assert judge(failing, TERMS).why.startswith("The new version is not worse: errors 100 %")


def test_a_metric_that_some_have_is_waited_for() -> None:
    """Where one request in ten is a stream, their times will be known soon, and are not left out before."""
    new = figures(480, streams=0.1)
    assert "TTFT" in judge(Evidence(OLD, new), TERMS).why
    assert judge(Evidence(OLD, new), TERMS).decision == "go on"


def test_scores_that_were_asked_for_are_waited_for() -> None:
    """A hook that has told little so far holds a promotion up, and one that does not exist does not."""
    new = figures(2000, 10)
    assert judge(Evidence(OLD, new, values(10, 0.0)), TERMS).decision == "go on"
    assert judge(Evidence(OLD, new, None), TERMS).decision == "promote"


@given(evidences)
def test_the_end_agrees_with_the_test_and_always_decides(evidence: Evidence) -> None:
    """What was decided stays; otherwise it is decided by the estimates, and the sentence admits it."""
    first, last = judge(evidence, TERMS), at_the_end(evidence, TERMS)
    assert last.why.endswith(".")
    if first.decision == "go on":
        assert last.decision != "go on"
        assert last.why.startswith("The time is over before the test has decided, and ")
    else:
        assert last == first


@pytest.mark.parametrize(
    "new, decision, words",
    [
        (figures(60, 3), "roll back", "the new version looks worse: errors 5 % of 60 requests against 0.5 % of 20000"),
        (figures(60, ttft=0.7), "roll back", "the new version looks worse: TTFT x1.40"),
        (figures(60, tokens=20), "roll back", "the new version looks worse: length x0.21"),
        (figures(60, 1), "promote", "the new version does not look worse: errors 1.67 % of 60 requests"),
        (figures(5, ttft=9.0), "promote", "the new version does not look worse: errors 0 % of 5 requests"),
        (Figures(), "promote", "no request went to the new version, so nothing speaks against it."),
    ],
)
def test_the_end_goes_by_estimates(new: Figures, decision: str, words: str) -> None:
    """Beyond a margin it is rolled back, else promoted; times of a handful of requests are no estimate."""
    found = at_the_end(Evidence(OLD, new), TERMS)
    assert found.decision == decision
    assert found.why.startswith(f"The time is over before the test has decided, and {words}")


@pytest.mark.parametrize("terms", [{"alpha": 0.0}, {"ttft": 1.0}, {"errors": 0.0}, {"score": -1.0}, {"least": -1}])
def test_terms_without_a_meaning_are_refused(terms: dict[str, float]) -> None:
    """The error names what is wrong."""
    with pytest.raises(ValueError, match=next(iter(terms))):
        Terms(**terms)  # type: ignore[arg-type] # what a caller may have read from anywhere


def shorter(case: Case) -> Case:
    """A case that takes little time."""
    return msgspec.structs.replace(case, requests=2500)


def named(case: Case) -> str:
    """For the names of tests."""
    return case.name


@pytest.mark.parametrize("case", [NOT_WORSE[6], NOT_WORSE[8]], ids=named)
def test_a_version_that_is_not_worse_is_seldom_rolled_back(case: Case) -> None:
    """Looked at all the time, no more of a few runs are rolled back than alpha allows."""
    assert count(shorter(case), range(FEW)).rolled_back <= most_by_chance(FEW, TERMS.alpha)


@pytest.mark.parametrize("case", [JUST_WORSE[3], JUST_WORSE[7], JUST_WORSE[13]], ids=named)
def test_a_version_that_is_worse_is_seldom_promoted(case: Case) -> None:
    """One metric at its margin: no more of a few runs are promoted than alpha allows."""
    assert count(shorter(case), range(FEW)).promoted <= most_by_chance(FEW, TERMS.alpha)


@pytest.mark.parametrize("case", [HARM[0], HARM[6], HARM[10]], ids=named)
def test_clear_harm_is_seen(case: Case) -> None:
    """Each of a few runs is rolled back."""
    assert count(shorter(case), range(FEW)).rolled_back == FEW


@pytest.mark.full
@pytest.mark.parametrize("case", NOT_WORSE, ids=named)
def test_false_rollbacks_keep_to_alpha(case: Case) -> None:
    """Of many runs no more are rolled back than alpha allows."""
    assert count(case, range(MANY)).rolled_back <= most_by_chance(MANY, TERMS.alpha)


@pytest.mark.full
@pytest.mark.parametrize("case", JUST_WORSE, ids=named)
def test_false_promotions_keep_to_alpha(case: Case) -> None:
    """Of many runs no more are promoted than alpha allows."""
    assert count(case, range(MANY)).promoted <= most_by_chance(MANY, TERMS.alpha)


@pytest.mark.full
@pytest.mark.parametrize("case", HARM, ids=named)
def test_all_harm_is_seen_in_the_end(case: Case) -> None:
    """Most of many runs are rolled back, also where harm is little beyond the margin, and none is promoted."""
    found = count(case, range(MANY // 3))
    assert found.promoted == 0
    assert found.rolled_back >= 0.6 * found.runs


@pytest.mark.full
@pytest.mark.parametrize("case", ALLOWED, ids=named)
def test_what_does_no_harm_is_promoted_in_the_end(case: Case) -> None:
    """Four fifths of many runs are promoted, and next to none is rolled back."""
    found = count(case, range(MANY // 3))
    assert found.promoted >= 0.8 * found.runs
    assert found.rolled_back <= most_by_chance(found.runs, TERMS.alpha)
