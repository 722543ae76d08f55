"""Times as people give and read them."""

from __future__ import annotations

import pytest

from tuneplex.cli.keys import lifetime
from tuneplex.cli.times import distance, moment, seconds
from tuneplex.errors import UserError


@pytest.mark.parametrize(
    "away,words",
    [
        (0, "just now"),
        (20, "now"),
        (-20, "just now"),
        (60, "in 1 minute"),
        (3600, "in 60 minutes"),
        (-7200, "2 hours ago"),
        (86400, "in 24 hours"),
        (90 * 86400 - 3, "in 90 days"),
        (-400 * 86400, "400 days ago"),
    ],
)
def test_distance_is_told_in_the_unit_that_loses_little(away: int, words: str) -> None:
    """The past and the future are told apart, and one of a unit is not several."""
    assert distance(1000.0 + away, 1000.0) == words


def test_moment_has_its_time_zone() -> None:
    """A date and a time without a zone could mean anything."""
    assert len(moment(0).split()) == 3


def test_wrong_duration_names_its_option() -> None:
    """The person reads which of the options was wrong."""
    with pytest.raises(UserError, match=r"^--grace: 'soon' is not a duration"):
        seconds("soon", "--grace")


@pytest.mark.parametrize("text,found", [(None, None), ("never", None), ("90d", 90 * 86400), ("1.6s", 2)])
def test_lifetime_is_whole_seconds_or_for_ever(text: str | None, found: int | None) -> None:
    """A key that does not expire has no lifetime."""
    assert lifetime(text) == found


@pytest.mark.parametrize("text,words", [("0", "would open nothing"), ("0.2s", "would open"), ("4000d", "too long")])
def test_senseless_lifetime_is_refused(text: str, words: str) -> None:
    """A key that is expired at once is a mistake, and so is one for longer than ten years."""
    with pytest.raises(UserError, match=words):
        lifetime(text)
