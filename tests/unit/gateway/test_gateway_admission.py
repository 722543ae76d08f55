"""What one gateway lets in by limits, and what it says of them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tuneplex.errors import RateLimited
from tuneplex.gateway.admission import Admission, Cost, Ticket
from tuneplex.identity import Limits, Subject
from tuneplex.policy import periods_at
from tuneplex.types import Leases

NOON = 86400 * 20000 + 43200.0
LATE = datetime(2026, 1, 31, 23, 59, 50, tzinfo=UTC).timestamp()
UNIT = 10**12
ACME = "tenant acme"


def subject(name: str = ACME, /, **limits: int) -> Subject:
    """Somebody with these limits."""
    return Subject(name, msgspec.structs.replace(Limits(), **limits))


class Desk:
    """An admission with its clocks."""

    def __init__(self, *subjects: Subject) -> None:
        self.admission = Admission(0)
        self.subjects = subjects
        self.now = 100.0
        self.wall = NOON

    def ask(self, tokens: int = 0, money: int = 0, least: int | None = None) -> Ticket:
        """One request; a stream, if it needs less at least than at most."""
        cost = Cost(money, money if least is None else least)
        return self.admission.admit(self.subjects, tokens, self.now, self.wall, cost)

    def refused(self, tokens: int = 0, money: int = 0, least: int | None = None) -> RateLimited:
        """One request that is not let in."""
        with pytest.raises(RateLimited) as caught:
            self.ask(tokens, money, least)
        return caught.value

    def money(self) -> int:
        """What the first subject has spent this month."""
        used, _ = self.admission.report(self.now, self.wall)
        return used[self.subjects[0].name].spent["money_per_month"].amount

    def wait(self, seconds: float) -> None:
        """Both clocks go on."""
        self.now += seconds
        self.wall += seconds

    def headers(self) -> dict[str, str]:
        """What a client is told."""
        lines = self.admission.headers(self.subjects, self.now, self.wall).decode().split("\r\n")
        return dict(line.removeprefix("x-ratelimit-").split(": ") for line in lines if line)


@pytest.mark.parametrize(
    "limits, tokens, words",
    [
        ({"requests_per_minute": 2}, 0, "tenant acme is limited to 2 requests per minute. Try again in 61 seconds."),
        ({"tokens_per_minute": 9}, 4, "limited to 9 tokens per minute, and this request may need 4. Try again in 61 s"),
        ({"tokens_per_day": 9}, 4, "limited to 9 tokens per day, and this request may need 4. Try again in 43200 sec"),
        ({"concurrent": 2}, 0, "tenant acme is limited to 2 requests at a time. Try again in 1 second."),
    ],
    ids=["requests", "tokens", "day", "concurrent"],
)
def test_each_limit_says_what_it_is_and_when_to_come_back(limits: dict[str, int], tokens: int, words: str) -> None:
    """Two requests pass and the third does not; after the time that it was told, it does."""
    desk = Desk(subject(**limits))
    first = desk.ask(tokens)
    desk.ask(tokens)
    error = desk.refused(tokens)
    assert words in error.message
    assert (error.status, error.kind, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert error.retry_after_s is not None
    if "concurrent" in limits:
        first.settle(0)
    else:
        desk.wait(error.retry_after_s - 2)
        desk.refused(tokens)
        desk.wait(2)
    desk.ask(tokens)


@pytest.mark.parametrize("kind", ["tokens_per_minute", "tokens_per_day"])
def test_a_request_that_can_never_pass(kind: str) -> None:
    """It is told so, with the numbers, and not when to come back."""
    error = Desk(subject(**{kind: 10})).refused(11)
    assert (error.code, error.retry_after_s) == ("request_too_large", None)
    assert "limited to 10 tokens per" in error.message
    assert "may need 11" in error.message


@pytest.mark.parametrize("kind", ["requests_per_minute", "concurrent"])
def test_a_limit_of_nothing(kind: str) -> None:
    """Nobody is told to come back for what will never be."""
    error = Desk(subject(**{kind: 0})).refused()
    assert (error.code, error.retry_after_s) == ("rate_limit_exceeded", None)


def test_nothing_is_counted_of_what_is_refused() -> None:
    """All subjects let a request in or none counts it, and of several waits the longest is told."""
    desk = Desk(
        subject(requests_per_minute=9), subject("key k1", concurrent=1), subject("model m", tokens_per_minute=5)
    )
    ticket = desk.ask(5)
    error = desk.refused(1)
    assert error.retry_after_s == 61
    assert error.message.startswith("Rate limit reached: model m ")
    used, _ = desk.admission.report(desk.now, desk.wall)
    assert [used[one.name].requests for one in desk.subjects] == [1, 1, 1]
    assert [used[one.name].refused for one in desk.subjects] == [0, 1, 1]
    ticket.settle(0)
    desk.ask(5)


def test_what_was_used_takes_the_reservations_place() -> None:
    """Less or more, in the minute and the day where it was made; settling twice changes nothing more."""
    desk = Desk(subject(tokens_per_minute=100, tokens_per_day=1000))
    ticket = desk.ask(90)
    desk.refused(20)
    for _ in range(2):
        ticket.settle(10)
    desk.ask(90).settle(95)
    used, _ = desk.admission.report(desk.now, desk.wall)
    assert (used[ACME].tokens, used[ACME].spent["tokens_per_day"].amount, used[ACME].concurrent) == (105, 105, 0)
    desk.refused(1)
    desk.wait(61)
    desk.ask(100)


def test_a_reservation_stays_where_nobody_knows_what_was_used() -> None:
    """The seat is free again, the tokens are not."""
    desk = Desk(subject(tokens_per_minute=100, concurrent=1))
    desk.ask(90).settle(None)
    desk.refused(20)
    desk.ask(10)


def test_what_reached_no_engine_does_not_count() -> None:
    """A cancelled request leaves nothing behind, and an account without anything is forgotten."""
    desk = Desk(subject(requests_per_minute=1, tokens_per_day=9))
    desk.ask(9).cancel()
    desk.ask(9).cancel()
    assert desk.admission.report(desk.now, desk.wall) == ({}, {})


def test_a_long_request_is_settled_in_its_own_day() -> None:
    """What was reserved before midnight is given back to the day that it was taken from."""
    desk = Desk(subject(tokens_per_day=100))
    ticket = desk.ask(100)
    desk.wait(43200)
    desk.ask(100)
    ticket.settle(30)
    desk.refused(1)
    desk.wall -= 43201
    desk.ask(70)
    desk.refused(1)


def test_a_wall_clock_that_jumps_gives_no_day_away_twice_and_locks_nobody_out() -> None:
    """A jump into another day is another day, and a jump back finds what was used of the first."""
    desk = Desk(subject(tokens_per_day=10, requests_per_minute=3))
    desk.ask(10)
    desk.wall += 86400
    desk.ask(10)
    desk.wall -= 86400
    assert "tokens per day" in desk.refused(1).message
    desk.wall -= 10 * 86400
    desk.ask(10)
    assert "requests per minute" in desk.refused(0).message


def test_a_clock_that_is_set_far_back() -> None:
    """The day that it is then has its limit, too, however many later ones there were."""
    desk = Desk(subject(tokens_per_day=10))
    for _ in range(5):
        desk.ask(10)
        desk.wait(86400)
    desk.wall -= 30 * 86400
    desk.ask(10)
    assert "tokens per day" in desk.refused(1).message


def test_money_that_is_used_up() -> None:
    """It is OpenAI's word for no money that is told, with who is limited to what, and not when to come back."""
    desk = Desk(subject(money_per_month=25 * UNIT))
    desk.admission.count_in("EUR")
    desk.ask(0, 20 * UNIT).settle(0, 20 * UNIT)
    error = desk.refused(0, 5 * UNIT + 1)
    assert (error.status, error.code, error.retry_after_s) == (429, "insufficient_quota", None)
    assert (
        "tenant acme is limited to 25.00 EUR per month, and this request may need 5.000000000001 EUR." in error.message
    )
    assert "The next month begins in 28 days." in error.message
    desk.ask(0, 5 * UNIT)
    too_large = desk.refused(0, 26 * UNIT)
    assert (too_large.code, too_large.retry_after_s) == ("request_too_large", None)


def test_money_that_only_is_reserved_comes_back() -> None:
    """While requests under way hold it, it is worth trying again soon."""
    desk = Desk(subject(money_per_month=10))
    ticket = desk.ask(0, 10)
    error = desk.refused(0, 4)
    assert (error.code, error.retry_after_s) == ("rate_limit_exceeded", 1)
    ticket.settle(0, 7)
    assert desk.refused(0, 4).code == "insufficient_quota"
    assert desk.money() == 7
    desk.ask(0, 3)


def test_money_of_a_request_that_was_none() -> None:
    """What reached no engine costs nothing, and what nobody knows costs what was reserved."""
    desk = Desk(subject(money_per_month=10, concurrent=5))
    desk.ask(0, 10).cancel()
    assert desk.admission.report(desk.now, desk.wall) == ({}, {})
    desk.ask(0, 4).settle(None, None)
    assert desk.money() == 4
    assert desk.refused(0, 7).code == "insufficient_quota"


def test_a_month_ends_and_a_clock_jumps_back() -> None:
    """A new month has all of its money, settling goes to the month of the request, and nothing is given away twice."""
    desk = Desk(subject(money_per_month=10))
    desk.wall = LATE
    ticket = desk.ask(0, 10)
    assert desk.refused(0, 1).retry_after_s == 1
    desk.wall += 20
    desk.ask(0, 9).settle(0, 9)
    ticket.settle(0, 8)
    assert desk.money() == 9
    assert "in 28 days" in desk.refused(0, 2).message
    desk.wall -= 20
    assert desk.money() == 8
    desk.ask(0, 2).settle(0, 2)
    assert desk.refused(0, 1).retry_after_s is not None  # the month is over within seconds


def test_shares_are_for_their_own_period() -> None:
    """What was told of one month says nothing of the next, in which a gateway begins with its part; nor of a day."""
    desk = Desk(subject(money_per_month=100, tokens_per_day=100))
    desk.wall = LATE
    limits = {ACME: desk.subjects[0].limits}
    for generation in (1, 2):
        shares = {0: {ACME: Limits(money_per_month=30, tokens_per_day=30)}}
        left = {ACME: {"money_per_month": 30, "tokens_per_day": 30}}
        desk.admission.lease(Leases(generation, shares, limits, periods_at(LATE), left))
    assert desk.refused(0, 31).retry_after_s is not None
    assert desk.refused(31).retry_after_s is not None
    desk.ask(30, 30)
    _, held = desk.admission.report(desk.now, desk.wall)
    assert held[ACME] == Limits(money_per_month=30, tokens_per_day=30)
    desk.wall += 20
    desk.ask(100, 100)
    _, held = desk.admission.report(desk.now, desk.wall)
    assert held[ACME] == Limits(money_per_month=100, tokens_per_day=100)


def test_a_stream_that_may_be_cut_needs_a_little() -> None:
    """It reserves no more than what is left, goes on as long as that lasts, and is told which limit ends it."""
    desk = Desk(subject(money_per_month=100))
    desk.subjects = (Subject(ACME, Limits(money_per_month=100, cut_streams=True)),)
    desk.ask(0, 70).settle(0, 70)
    stream = desk.ask(0, 500, 12)
    assert stream.cuts
    assert desk.money() == 100
    assert stream.ended_by(30) == ""
    assert stream.ended_by(31) == "tenant acme is limited to 0.0000000001 per month"
    assert desk.money() == 100
    stream.settle(0, 31)
    assert desk.money() == 101
    assert desk.refused(0, 500, 1).code == "insufficient_quota"


def test_a_stream_that_may_run_out_of_money_wants_more() -> None:
    """Control hears of what it could not reserve, so that this gateway's share can grow while it runs."""
    desk = Desk(Subject(ACME, Limits(money_per_month=100, cut_streams=True)))
    desk.admission.share_among(2)
    desk.ask(0, 60, 5)
    used, held = desk.admission.report(desk.now, desk.wall)
    assert (held[ACME].money_per_month, desk.money()) == (25, 25)
    assert used[ACME].wanted == Limits(money_per_month=60)


def test_what_others_give_back_lets_a_stream_go_on() -> None:
    """A stream's reservation grows by what has become free, or by a limit that was raised, and only then."""
    desk = Desk(Subject(ACME, Limits(money_per_month=100, cut_streams=True)))
    other = desk.ask(0, 60)
    stream = desk.ask(0, 500, 5)
    assert stream.ended_by(41)
    other.settle(0, 50)
    assert not stream.ended_by(50)
    assert stream.ended_by(51)
    desk.subjects = (Subject(ACME, Limits(money_per_month=101, cut_streams=True)),)
    desk.ask().settle(0, 0)
    assert not stream.ended_by(51)
    assert desk.money() == 101


def test_only_a_limit_that_may_cuts() -> None:
    """Others must have room for all of a stream before it begins, and never end it; nor does a month that ends."""
    desk = Desk(subject(money_per_month=100))
    assert desk.refused(0, 101, 5).code == "request_too_large"
    stream = desk.ask(0, 100, 5)
    assert not stream.cuts
    assert not stream.ended_by(1000)
    desk = Desk(Subject(ACME, Limits(money_per_month=100, cut_streams=True)))
    desk.wall = LATE
    stream = desk.ask(0, 100, 5)
    desk.wall += 20
    desk.ask().settle(0, 0)
    assert not stream.ended_by(1000)


def test_a_whole_reply_must_fit_also_where_streams_are_cut() -> None:
    """Nobody could be told that half of a document is all."""
    desk = Desk(Subject(ACME, Limits(money_per_month=100, cut_streams=True)))
    desk.ask(0, 60)
    assert desk.refused(0, 50).retry_after_s == 1
    desk.ask(0, 50, 5)


def test_headers_tell_of_who_has_the_least_left() -> None:
    """Requests and tokens each for themselves, as OpenAI writes it; nothing of what is not limited."""
    desk = Desk(subject(requests_per_minute=10), subject("key k", requests_per_minute=2, tokens_per_day=500))
    desk.ask(100)
    assert desk.headers() == {
        "limit-requests": "2",
        "remaining-requests": "1",
        "reset-requests": "1m1s",
        "limit-tokens": "500",
        "remaining-tokens": "400",
        "reset-tokens": "12h0m0s",
    }
    desk.wait(15)
    assert desk.headers()["reset-requests"] == "46s"
    desk.subjects = (subject(concurrent=3),)
    assert desk.headers() == {}


def test_limits_that_change_count_from_then_on() -> None:
    """What was let in before counts, and requests under way go on under the limit that they came with."""
    desk = Desk(subject(concurrent=3))
    tickets = [desk.ask() for _ in range(3)]
    desk.subjects = (subject(concurrent=1, requests_per_minute=4),)
    desk.refused()
    for ticket in tickets:
        ticket.settle(0)
    desk.ask().settle(0)
    assert "requests per minute" in desk.refused().message
    desk.subjects = (subject(requests_per_minute=5),)
    desk.ask()


def test_what_is_told_of_several_gateways() -> None:
    """A single request larger than what one gateway can hold never passes; one that only has to wait for it can."""
    desk = Desk(subject(tokens_per_minute=100))
    desk.admission.share_among(2)
    assert desk.headers()["remaining-tokens"] == "25"
    too_large = desk.refused(80)
    assert (too_large.code, too_large.retry_after_s) == ("request_too_large", None)
    assert "with 2 gateways no single request can have more than 75" in too_large.message
    assert desk.refused(60).retry_after_s == 5
    desk.admission.lease(Leases(1, {0: {ACME: Limits(tokens_per_minute=75)}}, {ACME: desk.subjects[0].limits}))
    desk.ask(60)
    used, held = desk.admission.report(desk.now, desk.wall)
    assert held == {ACME: Limits(tokens_per_minute=75)}
    assert used[ACME].wanted == Limits(tokens_per_minute=100)


def test_older_leases_are_not_taken() -> None:
    """What comes in another order than it was sent, or tells nothing, does not bring back a share."""
    desk = Desk(subject(concurrent=8))
    desk.admission.share_among(2)
    for generation, share in ((2, 3), (1, 6)):
        limits = {ACME: desk.subjects[0].limits}
        desk.admission.lease(Leases(generation, {0: {ACME: Limits(concurrent=share)}}, limits))
    desk.admission.lease(Leases(3, {1: {}}))
    for _ in range(3):
        desk.ask()
    assert desk.admission.generation == 2
    desk.refused()


@pytest.mark.parametrize("days", [-2, -1, 1, 2])
def test_a_clock_that_was_set_gives_no_day_away_twice(days: int) -> None:
    """Who is quiet while it is another day by a clock that somebody has set is still known when it is set back."""
    desk = Desk(subject(tokens_per_day=100))
    desk.ask(tokens=90).settle(90)
    desk.now += 300
    desk.wall += days * 86400
    desk.admission.report(desk.now, desk.wall)
    desk.wall -= days * 86400
    used, _ = desk.admission.report(desk.now, desk.wall)
    assert used[ACME].spent["tokens_per_day"].amount == 90
    assert desk.refused(tokens=20).status == 429


def test_who_has_long_been_quiet_is_forgotten() -> None:
    """Days that no clock comes back to keep nobody in memory."""
    desk = Desk(subject())
    desk.ask(tokens=90).settle(90)
    desk.wait(200 * 86400)
    assert desk.admission.report(desk.now, desk.wall)[0] == {}
