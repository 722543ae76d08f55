"""Control's own clock."""

from __future__ import annotations

import logging

import pytest

from tuneplex.control.clock import Clock


class Hands:
    """The system's clock and one that only goes forward, both in the test's hands."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.steady = 50.0

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.steady += seconds


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
def test_setting_the_clock_changes_nothing(jump: float, caplog: pytest.LogCaptureFixture) -> None:
    """Time goes on evenly, the difference is known for who reads the system's clock, and the log tells of it once."""
    hands = Hands()
    clock = Clock(lambda: hands.wall, lambda: hands.steady)
    hands.pass_s(10)
    assert (clock.now(), clock.ahead) == (1_000_010.0, 0.0)
    hands.wall += jump
    hands.pass_s(5)
    with caplog.at_level(logging.WARNING):
        assert (clock.now(), clock.ahead, clock.ahead) == (1_000_015.0, jump, jump)
    assert [record.message for record in caplog.records] == [f"the system's clock was set by_s={jump:.0f}"]


def test_small_corrections_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """What a time server corrects all the time would only make gateways be told the same again and again."""
    hands = Hands()
    clock = Clock(lambda: hands.wall, lambda: hands.steady)
    hands.wall += 0.4
    assert clock.ahead == 0.0
    assert not caplog.records
