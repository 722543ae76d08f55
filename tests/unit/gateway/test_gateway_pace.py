"""What estimates of a wait are made of."""

from __future__ import annotations

import pytest

from tuneplex.gateway.pace import Lengths, Speed


def wait(speed: Speed, start: float, seconds: float) -> None:
    """Something waits for so long."""
    for step in range(round(seconds * 10) + 1):
        speed.passed(start + step / 10)


def test_replies_are_expected_to_be_as_long_as_others_were() -> None:
    """Of each model by itself; before anything is known, a plain guess."""
    lengths = Lengths()
    assert lengths.expected("legal") == 256
    for tokens in (10, 20, 30):
        lengths.saw("legal", tokens)
    assert lengths.expected("legal") == pytest.approx(20)
    assert lengths.expected("contacts") == 256


def test_the_expected_length_follows_what_changes() -> None:
    """After some hundred other replies the old ones make no difference."""
    lengths = Lengths()
    for tokens in [1000] * 100 + [10] * 400:
        lengths.saw("legal", tokens)
    assert lengths.expected("legal") == pytest.approx(10, abs=1)


def test_the_speed_is_the_work_of_each_second_in_which_something_waited() -> None:
    """Work that is over, divided by time."""
    speed = Speed()
    for second in range(20):
        wait(speed, 100.0 + second, 0.9)
        speed.finished(300.0)
    assert speed.per_second == pytest.approx(300, rel=0.1)


def test_slow_engines_are_known_too() -> None:
    """Where a request is over once in a while, it takes a few of them as elsewhere, and what is known does not fade."""
    speed = Speed()
    for turn in range(40):
        wait(speed, 100.0 + 20 * turn, 19.9)
        speed.finished(600.0)
        assert turn < 10 or speed.per_second == pytest.approx(30, rel=0.3)


def test_few_requests_tell_nothing() -> None:
    """Neither before some time nor before some work is over anything is claimed."""
    speed = Speed()
    assert speed.per_second is None
    wait(speed, 0.0, 10.0)
    for _ in range(3):
        speed.finished(100.0)
    assert speed.per_second is None
    brief = Speed()
    brief.passed(0.0)
    for _ in range(50):
        brief.finished(100.0)
    assert brief.per_second is None


def test_times_in_which_nothing_waited_count_for_nothing() -> None:
    """A pause does not make the engines slow; after a long one nobody knows any more."""
    speed = Speed()
    wait(speed, 0.0, 5.0)
    for _ in range(10):
        speed.finished(50.0)
    before = speed.per_second
    assert before is not None
    speed.passed(30.0)
    assert speed.per_second == before
    speed.passed(300.0)
    assert speed.per_second is None
