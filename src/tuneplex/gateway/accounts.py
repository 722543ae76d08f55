"""What this gateway has let in of one tenant, key or model with limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tuneplex.identity import Limits, Subject
from tuneplex.policy import MINUTE_S, Cell, Periods, Window, periods_at, rest_s
from tuneplex.types import Spent, Used

__all__ = ["FREE", "Account", "Cost", "Obstacle", "Taken"]

_SOON_S = 1.0
_WANTED_S = {
    "requests_per_minute": MINUTE_S,
    "tokens_per_minute": MINUTE_S,
    "tokens_per_day": 5,
    "concurrent": 5,
    "money_per_month": 5,
}
_MOST = 2**63 - 1  # what can be reported


class Cost(NamedTuple):
    """What a request may cost, in picos.

    Attributes:
        most: With the longest answer that it allows.
        least: What must be left of a limit that may cut it: a whole reply is never cut, so that this is all of it.
    """

    most: int
    least: int


FREE = Cost(0, 0)


class Obstacle(NamedTuple):
    """A limit that stands against a request.

    Attributes:
        account: Whose.
        kind: Which field of `Limits`.
        limit: Of all gateways together.
        held: Of this gateway.
        cost: What the request needs of it.
        wait_s: When there would be room for it in what this gateway holds; infinite if it holds too little.
    """

    account: Account
    kind: str
    limit: int
    held: int
    cost: int
    wait_s: float


class Taken(msgspec.Struct):
    """Where a request was counted, and what was reserved for it.

    Attributes:
        account: Where.
        cell: It and its tokens.
        money: The cell of its money; None as long as it has cost nothing.
        reserved: Its money, picos.
    """

    account: Account
    cell: Cell
    money: Cell | None = None
    reserved: int = 0


class Account:
    """What was let in of one subject.

    Attributes:
        subject: Whose account it is, with its limits for all gateways together.
        held: What this gateway may let in.
        concurrent: Requests under way.
        refused: Requests refused so far.
        recent: Requests of the last minute, and their tokens, reserved or used.
        money: Of the last minute, reserved or used, picos.
        reserved: What the requests under way have reserved, picos.
    """

    __slots__ = (
        "_day",
        "_missed",
        "_month",
        "concurrent",
        "held",
        "money",
        "recent",
        "refused",
        "reserved",
        "subject",
    )

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.held = Limits()
        self.concurrent = 0
        self.refused = 0
        self.recent = Window()
        self.money = Window()
        self.reserved = 0
        self._day = Periods()  # tokens
        self._month = Periods()  # money
        self._missed: dict[str, Window] = {}

    # --- the usual way

    def refuses(self, tokens: int, cost: Cost, now: float, periods: Mapping[str, int]) -> bool:
        """Whether a limit stands against a request that needs so much."""
        held, recent = self.held, self.recent
        counted = recent.total(now)
        return (
            (held.requests_per_minute is not None and recent.times >= held.requests_per_minute)
            or (held.concurrent is not None and self.concurrent >= held.concurrent)
            or (held.tokens_per_minute is not None and counted + tokens > held.tokens_per_minute)
            or (
                held.tokens_per_day is not None
                and self._day.of(periods["tokens_per_day"]) + tokens > held.tokens_per_day
            )
            or (
                held.money_per_month is not None
                and self._month.of(periods["money_per_month"]) + self._needed(cost) > held.money_per_month
            )
        )

    def _needed(self, cost: Cost) -> int:
        """The money that must be left."""
        return cost.least if self.subject.limits.cut_streams else cost.most

    def take(self, tokens: int, cost: Cost, now: float, periods: Mapping[str, int]) -> Taken:
        """Count a request. One that may be cut reserves no more than what is left."""
        self.concurrent += 1
        self._day.add(periods["tokens_per_day"], tokens)
        taken = Taken(self, self.recent.add(now, tokens))
        if cost is not FREE:
            self._take_money(taken, cost, now, periods)
        return taken

    def _take_money(self, taken: Taken, cost: Cost, now: float, periods: Mapping[str, int]) -> None:
        month, spent, share = periods["money_per_month"], self._month, self.held.money_per_month
        money = cost.most
        if share is not None and self.subject.limits.cut_streams:
            money = min(money, max(cost.least, share - spent.of(month)))
            if money < cost.most:
                self._miss("money_per_month", cost.most - money, now)
        spent.add(month, money)
        self.reserved += money
        taken.money, taken.reserved = self.money.add(now, money), money

    def ends(self, taken: Taken, money: int, month: int, *, now: int) -> bool:
        """Whether a stream that has cost so much, picos, must end; if not, this much is reserved for it.

        Args:
            taken: What it has.
            money: What it has cost up to now.
            month: In which it was let in. What is left of a month that is over nobody knows, so it is not cut by it.
            now: The month that it is.
        """
        by, share = money - taken.reserved, self.held.money_per_month
        if by <= 0 or share is None or not self.subject.limits.cut_streams:
            return False
        if month == now and self._month.of(month) + by > share:
            return True
        self._reserve(taken, by, month)
        return False

    def _reserve(self, taken: Taken, by: int, month: int) -> None:
        taken.reserved += by
        self.reserved += by
        if taken.money is not None:
            self.money.correct(taken.money, by)
        self._month.add(month, by)

    def settle(self, taken: Taken, tokens: int, money: int | None, periods: Mapping[str, int]) -> None:
        """A request is over.

        Args:
            taken: Where it was counted.
            tokens: Used beyond what was reserved, or less than nothing.
            money: What it really cost, picos; None if nobody knows.
            periods: In which it was let in.
        """
        self.concurrent -= 1
        if tokens:
            self.recent.correct(taken.cell, tokens)
            self._day.add(periods["tokens_per_day"], tokens)
        if money is not None and money != taken.reserved:
            self._reserve(taken, money - taken.reserved, periods["money_per_month"])
        self.reserved -= taken.reserved

    def spent(self, kind: str, period: int) -> int:
        """What was let in of one of `BUDGETS` in a period, reserved or used."""
        return (self._day if kind == "tokens_per_day" else self._month).of(period)

    # --- refusals

    def obstacles(self, tokens: int, cost: Cost, now: float, wall: float) -> Iterator[Obstacle]:
        """Every limit that stands against a request."""
        held = self.held
        for kind, share, needed in (
            ("requests_per_minute", held.requests_per_minute, 1),
            ("tokens_per_minute", held.tokens_per_minute, tokens),
            ("tokens_per_day", held.tokens_per_day, tokens),
            ("concurrent", held.concurrent, 1),
            ("money_per_month", held.money_per_month, self._needed(cost)),
        ):
            if share is None:
                continue
            wait_s = self._wait_s(kind, share, needed, now, wall)
            if wait_s > 0:
                yield Obstacle(self, kind, getattr(self.subject.limits, kind), share, needed, wait_s)

    def _wait_s(self, kind: str, share: int, needed: int, now: float, wall: float) -> float:
        """Seconds until there is room, as far as this gateway can tell."""
        match kind:
            case "requests_per_minute":
                return self.recent.wait_for_times_s(now, share - needed)
            case "tokens_per_minute":
                return self.recent.wait_s(now, share - needed)
            case "concurrent":
                return 0.0 if self.concurrent < share else _SOON_S
        over = self.spent(kind, periods_at(wall)[kind]) + needed - share
        if over <= 0:
            return 0.0
        # Most of what a request has reserved comes back when it is over.
        return _SOON_S if kind == "money_per_month" and over <= self.reserved else rest_s(kind, wall)

    def refused_for(self, obstacle: Obstacle, now: float) -> None:
        """Note what was wanted in vain, so that control can see where more is wanted."""
        self._miss(obstacle.kind, obstacle.cost, now)

    def _miss(self, kind: str, amount: int, now: float) -> None:
        if kind not in self._missed:
            self._missed[kind] = Window(_WANTED_S[kind])
        self._missed[kind].add(now, min(amount, getattr(self.subject.limits, kind)))

    # --- for control

    def used(self, now: float, periods: Mapping[str, int]) -> Used:
        """What was let in and what was wanted."""
        tokens, requests = self.recent.total(now), self.recent.times
        return Used(
            requests=requests,
            tokens=tokens,
            spent={kind: Spent(period, min(_MOST, self.spent(kind, period))) for kind, period in periods.items()},
            concurrent=self.concurrent,
            refused=self.refused,
            wanted=Limits(
                requests_per_minute=self._wanted("requests_per_minute", now, requests),
                tokens_per_minute=self._wanted("tokens_per_minute", now, tokens),
                tokens_per_day=self._wanted("tokens_per_day", now, tokens),
                concurrent=self._wanted("concurrent", now, self.concurrent),
                money_per_month=self._wanted("money_per_month", now, self.money.total(now)),
            ),
        )

    def _wanted(self, kind: str, now: float, used: int) -> int | None:
        limit, missed = getattr(self.subject.limits, kind), self._missed.get(kind)
        return None if limit is None else min(limit, used + (missed.total(now) if missed is not None else 0))

    def idle(self, now: float, periods: Mapping[str, int]) -> bool:
        """Nothing would be lost if it were forgotten."""
        return not (
            self.concurrent
            or self._day.near(periods["tokens_per_day"])
            or self._month.near(periods["money_per_month"])
            or self.recent.total(now)
            or self.recent.times
            or any(missed.total(now) for missed in self._missed.values())
        )
