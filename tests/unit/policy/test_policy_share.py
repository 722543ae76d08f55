"""Who gets a new version."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tuneplex.policy.share import takes_new

subjects = st.text("ak0é\N{SNOWMAN}")
shares = st.floats(0, 1)


@given(subjects, subjects, shares, shares)
def test_nobody_is_moved_back_as_the_share_grows(subject: str, salt: str, one: float, other: float) -> None:
    """Whoever gets the new version at a smaller share gets it at a larger one."""
    assert takes_new(subject, salt, min(one, other)) <= takes_new(subject, salt, max(one, other))


@given(subjects, subjects)
def test_none_and_all_are_exact(subject: str, salt: str) -> None:
    """At 0 nobody gets the new version, at 1 everybody, also whoever has a name that is no proper Unicode."""
    assert not takes_new(subject, salt, 0.0)
    assert takes_new(subject, salt, 1.0)
    assert takes_new(f"{subject}\ud800", salt, 1.0)


def test_the_share_is_met_and_each_salt_draws_anew() -> None:
    """Of many subjects the share gets it, within five standard deviations, and of those again with another salt."""
    names = [f"key-{number}" for number in range(20_000)]
    for share in (0.01, 0.1, 0.5):
        first = [name for name in names if takes_new(name, "one", share)]
        both = [name for name in first if takes_new(name, "two", share)]
        for some, of in ((first, len(names)), (both, len(first))):
            assert abs(len(some) - share * of) <= 5 * math.sqrt(share * (1 - share) * of)


def test_salt_and_subject_are_kept_apart() -> None:
    """Where one ends and the other begins matters."""
    differ = [takes_new(f"b{n}", "a", 0.5) != takes_new(f"{n}", "ab", 0.5) for n in range(64)]
    assert any(differ)


def test_the_same_ones_for_ever() -> None:
    """A later version must not deal the subjects anew in the middle of a rollout."""
    assert [takes_new(f"key-{n}", "salt", 0.5) for n in range(8)] == [
        False,
        False,
        False,
        False,
        False,
        False,
        False,
        True,
    ]
