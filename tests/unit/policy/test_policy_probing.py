"""What log-probabilities of probes say of a new version."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy.probing import Probe, Tolerance, judge_probes

BASE = (-0.1, -2.0, -0.5, -4.0)
NEW = (-0.3, -1.0, -0.2, -3.0)
GOOD = Probe("greeting", BASE, BASE, NEW)

log_probabilities = st.floats(-20, 0)


def moved(values: tuple[float, ...], by: float) -> tuple[float, ...]:
    """Each of them a little up or down in turn."""
    return tuple(value + (by if place % 2 else -by) for place, value in enumerate(values))


def test_an_adapter_that_changes_something_passes() -> None:
    """The sentence names the probe that changes most, and that there was nothing recorded to compare with."""
    found = judge_probes([Probe("other", BASE, BASE, BASE), GOOD])
    assert found.passed
    assert found.why == (
        "The adapter is applied: probe greeting differs from the base by 0.625 nats a token; no reference was recorded."
    )


def test_an_adapter_that_is_not_applied_fails() -> None:
    """What answers exactly like the base, or within what bfloat16 makes of the same sum, is not applied."""
    for new in (BASE, moved(BASE, 0.06)):
        found = judge_probes([Probe("greeting", BASE, BASE, new)])
        assert not found.passed
        assert found.why.startswith("The adapter seems not to be applied: probe greeting")


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_change(seed: int) -> None:
    """Where the base itself moves from one answer to the next, as much movement shows nothing, and more does."""
    chance = random.Random(seed)  # noqa: S311 - a simulation

    def noisy(values: list[float]) -> tuple[float, ...]:
        return tuple(value + chance.gauss(0, 0.1) for value in values)

    probes, changed = [], []
    for name in "abcd":
        true = [chance.uniform(-5, 0) for _ in range(16)]
        probes.append(Probe(name, noisy(true), noisy(true), noisy(true)))
        changed.append(Probe(name, noisy(true), noisy(true), noisy([value + 1.0 for value in true])))
    assert not judge_probes(probes).passed
    assert judge_probes(changed).passed


@given(st.lists(log_probabilities, min_size=1, max_size=20), st.floats(0, 3))
def test_who_answers_as_the_base_did_either_time_never_passes(base: list[float], noise: float) -> None:
    """Whatever the noise is, one of the base's own answers is within it."""
    first, again = tuple(base), moved(tuple(base), noise)
    assert not judge_probes([Probe("one", first, again, first)]).passed
    assert not judge_probes([Probe("one", first, again, again)]).passed


@pytest.mark.parametrize(
    "reference, words",
    [
        (moved(NEW, 0.2), "differs from its reference by 0.2 nats a token; at most 0.15 is noise."),
        ((*NEW[:3], -4.1), "differs from its reference by 0.275 nats a token; at most 0.15 is noise."),
        ((*NEW * 14, -5.0), "differs from its reference by 2 nats at token 57; at most 1.5 is noise."),
    ],
)
def test_a_reference_must_be_met(reference: tuple[float, ...], words: str) -> None:
    """Neither the mean over the tokens nor a single one may be far off."""
    times = len(reference) // 4
    base, new = BASE * times + (-3.0,) * (len(reference) % 4), NEW * times + (-3.0,) * (len(reference) % 4)
    found = judge_probes([Probe("greeting", base, base, new, reference)])
    assert (found.passed, found.why) == (False, f"Probe greeting {words}")


def test_a_reference_from_other_hardware_is_met() -> None:
    """Small differences of all tokens are told and pass, unless less is tolerated."""
    probe = Probe("greeting", BASE, BASE, NEW, moved(NEW, 0.08))
    found = judge_probes([GOOD, probe])
    assert found.passed
    assert found.why.endswith("; 1 of 2 probes have references and are within 0.08 of them.")
    assert not judge_probes([probe], Tolerance(mean=0.05)).passed


@pytest.mark.parametrize("who, words", [(1, "the base asked again"), (2, "the new version"), (3, "the reference")])
@pytest.mark.parametrize(
    "values, trouble",
    [
        ((), "has told no log-probabilities."),
        ((-1.0,), "has told 1 log-probabilities and the base 4."),
        ((-1.0, math.nan, -1.0, -1.0), "has told nan for token 2, which is no log-probability."),
        ((-1.0, -1.0, -math.inf, -1.0), "has told -inf for token 3, which is no log-probability."),
        ((-9999.0, -1.0, -1.0, -1.0), "has told -9999.0 for token 1, which is no log-probability."),
    ],
)
def test_answers_that_cannot_be_compared_fail(who: int, words: str, values: tuple[float, ...], trouble: str) -> None:
    """Whoever told too few, or what is no number, is named."""
    answers: list[tuple[float, ...]] = [BASE, BASE, NEW, NEW]
    answers[who] = values
    found = judge_probes([Probe("greeting", *answers)])
    assert (found.passed, found.why) == (False, f"Probe greeting: {words} {trouble}")


def test_without_probes_nothing_is_shown() -> None:
    """No probe, or one without tokens, is no reason to let a version pass."""
    assert not judge_probes([]).passed
    assert judge_probes([Probe("empty", (), (), ())]).why == "Probe empty: the base has told no log-probabilities."


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_tolerance_is_a_number(value: float) -> None:
    """What would let everything or nothing pass is refused."""
    with pytest.raises(ValueError, match="noise is"):
        Tolerance(noise=value)
