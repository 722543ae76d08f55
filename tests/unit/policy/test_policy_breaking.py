"""When a breaker opens, what it lets go then, and how it closes again."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tuneplex.policy import Breaker, Word
from tuneplex.types import Breaking

SETTINGS = Breaking(failures=3, open_s=5.0, longest_s=30.0)


def breaker(settings: Breaking = SETTINGS) -> Breaker:
    """A new one."""
    return Breaker(settings, count(1))


def send(one: Breaker, now: float, *words: Word) -> None:
    """Requests that begin and end at once, one after another."""
    for word in words:
        one.end(now, one.begin(now), word)


def opened(now: float = 100.0) -> Breaker:
    """One that has just opened."""
    one = breaker()
    send(one, now, *[Word.FAILED] * 3)
    assert one.state(now) == "open"
    return one


def test_failures_in_a_row_open_it() -> None:
    """The last of so many failures opens it; a success between them begins the row anew."""
    one = breaker()
    send(one, 1.0, Word.FAILED, Word.FAILED, Word.WELL, Word.FAILED, Word.FAILED)
    assert one.state(1.0) == "closed"
    send(one, 1.0, Word.FAILED)
    assert one.state(1.0) == "open"
    assert one.opened == 1
    assert not one.admits(5.9)


def test_what_says_nothing_changes_nothing() -> None:
    """Refusals and clients that left neither count as failures nor end a row of them."""
    one = breaker()
    send(one, 1.0, *[Word.NOTHING] * 100, Word.FAILED, Word.FAILED, *[Word.NOTHING] * 100)
    assert one.state(1.0) == "closed"
    send(one, 1.0, Word.FAILED)
    assert one.state(1.0) == "open"


def test_requests_that_may_be_to_blame_do_not_open_it_by_themselves() -> None:
    """A row of doubtful failures is no row; only a replica that mostly fails is opened by them."""
    one = breaker()
    send(one, 1.0, *[Word.DOUBTFUL] * 19)
    assert one.state(1.0) == "closed"
    send(one, 1.0, Word.DOUBTFUL)
    assert one.state(1.0) == "open"


@pytest.mark.parametrize("good, apart_s, state", [(1, 0.7, "open"), (2, 0.7, "closed"), (1, 1.7, "closed")])
def test_one_that_mostly_fails_opens(good: int, apart_s: float, state: str) -> None:
    """Half of them failing within half a minute open it, fewer or slower ones do not, as long as none are in a row."""
    one, now = breaker(), 0.0
    for _ in range(40):
        send(one, now, Word.FAILED, *[Word.WELL] * good)
        now += apart_s
    assert one.state(now) in ({"open", "half-open"} if state == "open" else {"closed"})


def test_one_probe_goes_and_closes_it() -> None:
    """After its time one request goes and no second one; its success lets all go again and forgets what was."""
    one = opened(100.0)
    assert one.admits(105.0)
    probe = one.begin(105.0)
    assert not one.admits(105.0)
    assert one.state(105.0) == "half-open"
    one.end(106.0, probe, Word.WELL)
    assert one.is_closed(106.0)
    send(one, 106.0, Word.FAILED, Word.FAILED)
    assert one.is_closed(106.0)


@pytest.mark.parametrize("word", [Word.FAILED, Word.DOUBTFUL])
def test_a_probe_that_fails_opens_it_for_twice_as_long(word: Word) -> None:
    """Each failed probe doubles the time, up to the longest one."""
    one, now, waits = opened(100.0), 100.0, []
    for _ in range(5):
        waits.append(one.wait_s(now))
        now += waits[-1]
        one.end(now, one.begin(now), word)
    assert waits == [5.0, 10.0, 20.0, 30.0, 30.0]
    assert one.opened == 6


def test_doubling_is_forgotten_after_it_was_well_for_a_while() -> None:
    """One that fails again soon after its probe goes on doubling; one that was well for long begins anew."""
    one = opened(100.0)
    send(one, 105.0, Word.WELL)
    send(one, 110.0, *[Word.FAILED] * 3)
    assert one.wait_s(110.0) == 10.0
    send(one, 120.0, Word.WELL)
    send(one, 151.0, *[Word.FAILED] * 3)
    assert one.wait_s(151.0) == 5.0


def test_a_probe_that_proves_nothing_lets_the_next_one_go() -> None:
    """When the probe's client leaves, the next request is the probe at once."""
    one = opened(100.0)
    one.end(105.5, one.begin(105.0), Word.NOTHING)
    assert one.admits(105.5)
    send(one, 105.5, Word.WELL)
    assert one.is_closed(105.5)


@pytest.mark.parametrize("word, state", [(Word.WELL, "closed"), (Word.FAILED, "open")])
@pytest.mark.parametrize("late", [False, True])
def test_a_lost_probe_does_not_block_it_for_ever(word: Word, state: str, *, late: bool) -> None:
    """Where nobody hears of a probe for long another one goes, and whichever ends first decides."""
    one = opened(100.0)
    lost = one.begin(105.0)
    assert not one.admits(134.9)
    second = one.begin(135.0)
    assert not one.admits(135.0)
    one.end(136.0, lost if late else second, word)
    assert one.state(136.0) == state


def test_replies_that_take_longer_than_probes_may_close_it() -> None:
    """However long each takes, and though another one goes in between each time."""
    one = opened(100.0)
    probes = [one.begin(105.0 + 30.0 * number) for number in range(3)]
    one.end(170.0, probes[0], Word.WELL)
    assert one.state(170.0) == "closed"


def test_what_began_before_does_not_count_after() -> None:
    """The ends of requests from before it opened change nothing, neither while it is open nor after it has closed."""
    one = breaker()
    early = [one.begin(1.0) for _ in range(50)]
    send(one, 1.0, *[Word.FAILED] * 3)
    one.end(2.0, early.pop(), Word.WELL)
    assert one.state(2.0) == "open"
    probe = one.begin(6.0)
    one.end(6.0, early.pop(), Word.FAILED)
    one.end(6.0, probe, Word.WELL)
    for era in early:
        one.end(7.0, era, Word.FAILED)
    assert one.is_closed(7.0)
    assert one.opened == 1


def test_whoever_was_not_admitted_says_nothing() -> None:
    """A request that goes to an open one all the same proves nothing by its end."""
    one = opened(100.0)
    send(one, 101.0, Word.WELL, Word.FAILED)
    assert one.wait_s(101.0) == 4.0


def test_one_that_is_held_gets_nothing_and_has_not_failed() -> None:
    """By its own wish it gets no requests for a time, no shorter one after a longer one, and nothing counts for it."""
    one = breaker()
    one.hold(10.0, 7.0)
    one.hold(11.0, 1.0)
    assert one.state(11.0) == "held"
    assert not one.admits(16.9)
    assert one.admits(17.0)
    assert one.opened == 0


def test_absurd_wishes_are_cut() -> None:
    """Nobody is held for longer than an open breaker would last, whatever it asks for."""
    one = breaker()
    one.hold(10.0, float("inf"))
    assert one.wait_s(10.0) == SETTINGS.longest_s


def test_settings_may_change_at_any_time() -> None:
    """New settings hold from the next failure and the next opening on."""
    one = breaker()
    send(one, 1.0, Word.FAILED, Word.FAILED)
    one.settings = Breaking(failures=1, open_s=2.0, longest_s=3.0)
    send(one, 1.0, Word.FAILED)
    assert one.wait_s(1.0) == 2.0
    send(one, 3.0, Word.FAILED)
    assert one.wait_s(3.0) == 3.0


class Life(RuleBasedStateMachine):
    """Any life of a breaker: requests that begin and end in any order, or never, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.under_way: list[int] = []
        self.probe: tuple[int, float] | None = None

    @initialize(failures=st.integers(1, 6), open_s=st.sampled_from([0.5, 5.0, 90.0]), longest_s=st.just(60.0))
    def start(self, failures: int, open_s: float, longest_s: float) -> None:
        """With any settings, also when the longest time is shorter than the first."""
        self.settings = Breaking(failures, open_s, longest_s)
        self.breaker = Breaker(self.settings, count(1))

    @rule(seconds=st.sampled_from([0.125, 1.0, 7.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def begin(self) -> None:
        """A request goes if it may: half open, it is the only one of the last minute that has not ended."""
        if not self.breaker.admits(self.now):
            return
        half_open = self.breaker.state(self.now) == "half-open"
        era = self.breaker.begin(self.now)
        if half_open:
            assert self.probe is None or self.now - self.probe[1] >= self.settings.longest_s
            self.probe = era, self.now
        self.under_way.append(era)

    @rule(which=st.integers(0), word=st.sampled_from(Word))
    def end(self, which: int, word: Word) -> None:
        """One of those under way ends; some never do."""
        if not self.under_way:
            return
        era = self.under_way.pop(which % len(self.under_way))
        opened = self.breaker.opened
        self.breaker.end(self.now, era, word)
        if self.probe is not None and self.probe[0] == era:
            self.probe = None
        if word in {Word.WELL, Word.NOTHING}:
            assert self.breaker.opened == opened

    @rule(seconds=st.floats(0, 1e9))
    def hold(self, seconds: float) -> None:
        """It asks for a pause."""
        self.breaker.hold(self.now, seconds)

    @invariant()
    def no_wait_is_longer_than_the_longest(self) -> None:
        """However often it fails and whatever it asks for."""
        if hasattr(self, "breaker"):
            assert 0 <= self.breaker.wait_s(self.now) <= self.settings.longest_s
            assert (self.breaker.wait_s(self.now) == 0) == self.breaker.admits(self.now)

    def teardown(self) -> None:
        """Once the replica is well again so is the breaker, after one longest time and one request, whatever was."""
        if hasattr(self, "breaker"):
            self.now += self.settings.longest_s
            assert self.breaker.admits(self.now)
            self.breaker.end(self.now, self.breaker.begin(self.now), Word.WELL)
            assert self.breaker.is_closed(self.now)


TestLife = Life.TestCase
TestLife.settings = hypothesis_settings(max_examples=100, stateful_step_count=60, deadline=None)
