"""Whether a request is let in, by the limits of its tenant, its key and its model.

All of it is in memory and takes a few microseconds; a caller without limits never comes here. A request is checked
against everything at once and counted everywhere or nowhere. What it may need is reserved; when it is over, what it
really used takes the reservation's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from tuneplex.errors import RateLimited
from tuneplex.gateway.accounts import FREE, Account, Cost, Obstacle, Taken
from tuneplex.identity import Limits, Subject
from tuneplex.policy import BUDGETS, DAY_S, Window, ceiling, day_of, floor, periods_at, rest_s
from tuneplex.types import Leases, Used
from tuneplex.units import format_money

__all__ = ["FREE", "Admission", "Cost", "Ticket"]

# How long a share takes to move to where it is wanted, if nobody has used it.
_MOVING_S = 5.0
# To wait longer for money than this is not worth telling: it comes with the next month.
_WORTH_WAITING_S = 60.0
_NO_LIMITS = Limits()
_NO_SHARES: dict[str, Limits] = {}
_PER = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "tokens_per_day": "tokens per day",
    "concurrent": "requests at a time",
    "money_per_month": "per month",
}
_TOKENS = frozenset({"tokens_per_minute", "tokens_per_day"})
_MONEY = "money_per_month"
_MINUTE_S, _HOUR_S = 60, 3600
# What is left of a limit, the limit, what fills it, and the window that it leaves again; what is of the day stays.
_Left = tuple[int, int, int, Window | None]
_REQUESTS_LEFT = (
    b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
)
_TOKENS_LEFT = _REQUESTS_LEFT.replace(b"requests", b"tokens")


class Ticket:
    """A request that was let in, until it is over.

    Attributes:
        cuts: A limit may end its stream.
    """

    __slots__ = ("_admission", "_periods", "_taken", "_tokens", "cuts")

    def __init__(self, admission: Admission, taken: list[Taken], tokens: int, *, cuts: bool = False) -> None:
        self._admission = admission
        self._taken = taken
        self._tokens = tokens
        self._periods = admission.periods
        self.cuts = cuts

    def ended_by(self, money: int) -> str:
        """Which limit ends its stream now that it has cost so much, picos; empty if none does.

        What it has cost beyond its reservation is reserved, as long as there is something left.
        """
        month, now = self._periods[_MONEY], self._admission.periods[_MONEY]
        for taken in self._taken:
            if taken.account.ends(taken, money, month, now=now):
                return self._admission.limited_to(taken.account.subject, _MONEY)
        return ""

    def settle(self, tokens: int | None, money: int | None = 0) -> None:
        """It is over, and has really used so many tokens, and so much money, picos.

        With None nobody knows, and the reservation stays.
        """
        by = 0 if tokens is None else tokens - self._tokens
        for taken in self._taken:
            taken.account.settle(taken, by, None if tokens is None else money, self._periods)
        self._taken = []

    def cancel(self) -> None:
        """It was none: no engine was asked."""
        for taken in self._taken:
            taken.account.recent.withdraw(taken.cell)
        self.settle(0)


class Admission:
    """What this gateway may let in, and what it has.

    Args:
        index: Which gateway this is.

    Attributes:
        periods: The day and the month that it goes by.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._gateways = 1
        self._leases = Leases()
        self._first_leases = 0
        self._day = 0
        self._currency = ""
        self.periods = periods_at(0)
        self._accounts: dict[str, Account] = {}

    # --- what it goes by

    @property
    def generation(self) -> int:
        """Of the leases that it goes by."""
        return self._leases.generation

    def share_among(self, gateways: int) -> None:
        """So many gateways share each limit."""
        if gateways != self._gateways:
            self._gateways = gateways
            self._hold()

    def count_in(self, currency: str) -> None:
        """Limits in money are in this currency."""
        self._currency = currency

    def lease(self, leases: Leases) -> None:
        """Go by these shares from now on, unless newer ones are known, or they tell this gateway nothing."""
        if leases.generation < self._leases.generation or self._index not in leases.shares:
            return
        self._leases = leases
        self._first_leases = self._first_leases or leases.generation
        self._hold()

    def _hold(self) -> None:
        for account in self._accounts.values():
            account.held = self._held(account.subject)

    def _held(self, subject: Subject) -> Limits:
        """What this gateway may let in of a subject."""
        limits, name = subject.limits, subject.name
        share = self._leases.shares.get(self._index, _NO_SHARES).get(name, _NO_LIMITS)
        divided = self._leases.limits.get(name, _NO_LIMITS)
        return Limits(
            requests_per_minute=self._part(
                limits.requests_per_minute, share.requests_per_minute, divided.requests_per_minute
            ),
            tokens_per_minute=self._part(limits.tokens_per_minute, share.tokens_per_minute, divided.tokens_per_minute),
            concurrent=self._part(limits.concurrent, share.concurrent, divided.concurrent),
            tokens_per_day=self._part(
                limits.tokens_per_day, self._budget_share(name, "tokens_per_day", share), divided.tokens_per_day
            ),
            money_per_month=self._part(
                limits.money_per_month, self._budget_share(name, _MONEY, share), divided.money_per_month
            ),
        )

    def _part(self, limit: int | None, share: int | None, divided: int | None) -> int | None:
        """The share that it was told, unless the limit has been lowered since."""
        if limit is None:
            return None
        least = floor(limit, self._gateways)
        if share is None or divided is None:
            return least
        return share if divided <= limit else min(share, least)

    def _budget_share(self, name: str, kind: str, share: Limits) -> int | None:
        """The share of this day, or month, if it was told one.

        The first that a process is told was meant for the one before it, and what that one has used is gone.
        """
        told: int | None = getattr(share, kind)
        if told is None or self._leases.periods.get(kind) != self.periods[kind]:
            return None
        if self._leases.generation != self._first_leases:
            return told
        return min(told, floor(self._leases.left.get(name, {}).get(kind, 0), self._gateways))

    # --- requests

    def admit(self, subjects: Sequence[Subject], tokens: int, now: float, wall: float, cost: Cost = FREE) -> Ticket:
        """Let a request in that may need so many tokens, and so much money.

        Args:
            subjects: Whose limits it counts against.
            tokens: To reserve.
            now: Of a clock that only goes forward.
            wall: Unix time, which says what day it is.
            cost: Money to reserve.

        Raises:
            RateLimited: At least one limit stands against it; nothing was counted.
        """
        ticket = self.try_admit(subjects, tokens, now, wall, cost)
        if ticket is None:
            raise self._refusal(self._of(subjects), tokens, cost, now, wall)
        return ticket

    def try_admit(
        self, subjects: Sequence[Subject], tokens: int, now: float, wall: float, cost: Cost = FREE
    ) -> Ticket | None:
        """The same, for who can ask for less if that is too much: None instead of a refusal, which counts nowhere."""
        periods = self._now(wall)
        accounts = self._of(subjects)
        for account in accounts:
            if account.refuses(tokens, cost, now, periods):
                return None
        taken = [account.take(tokens, cost, now, periods) for account in accounts]
        cuts = cost is not FREE and any(_cuts(subject.limits) for subject in subjects)
        return Ticket(self, taken, tokens, cuts=cuts)

    def is_full(self, subjects: Sequence[Subject], now: float, wall: float) -> bool:
        """Whether a limit stands against any request, whatever it needs."""
        periods = self._now(wall)
        return any(account.refuses(0, FREE, now, periods) for account in self._of(subjects))

    def _now(self, wall: float) -> dict[str, int]:
        if wall // DAY_S != self._day:
            self._day = day_of(wall)
            self.periods = periods_at(wall)
            self._hold()
        return self.periods

    def _of(self, subjects: Iterable[Subject]) -> list[Account]:
        """Their accounts."""
        known = self._accounts
        return [
            account
            if (account := known.get(subject.name)) is not None and account.subject is subject
            else self._account(subject)
            for subject in subjects
        ]

    def _account(self, subject: Subject) -> Account:
        """Of one that is new here, or was made anew, as happens at every change of keys or fleet."""
        account = self._accounts.get(subject.name)
        if account is None:
            account = self._accounts[subject.name] = Account(subject)
        account.subject = subject
        account.held = self._held(subject)
        return account

    def _refusal(self, accounts: Iterable[Account], tokens: int, cost: Cost, now: float, wall: float) -> RateLimited:
        """What to say: of several limits the one that lasts longest, so that waiting for it is enough."""
        found = [self._likely(one) for account in accounts for one in account.obstacles(tokens, cost, now, wall)]
        for one in found:
            one.account.refused_for(one, now)
        for account in {id(one.account): one.account for one in found}.values():
            account.refused += 1
        return self._words(max(found, key=lambda one: one.wait_s))

    def _likely(self, obstacle: Obstacle) -> Obstacle:
        """When there will be room, as far as this gateway can tell: its own share may also grow."""
        limit, cost = obstacle.limit, obstacle.cost
        if cost > ceiling(limit, self._gateways):
            return obstacle._replace(wait_s=math.inf)
        if self._gateways == 1:
            return obstacle
        if obstacle.kind in BUDGETS:
            left = self._leases.left.get(obstacle.account.subject.name, {}).get(obstacle.kind, limit)
            return obstacle._replace(wait_s=_MOVING_S) if cost <= ceiling(left, self._gateways) else obstacle
        return obstacle._replace(wait_s=_MOVING_S) if cost > obstacle.held else obstacle

    # --- what is told of it

    def headers(self, subjects: Iterable[Subject], now: float, wall: float) -> bytes:
        """Header lines that say how much this caller can still ask, after it was let in or refused just now."""
        day = self._now(wall)["tokens_per_day"]
        requests: _Left | None = None
        tokens: _Left | None = None
        for account in self._of(subjects):
            limits, held, recent = account.subject.limits, account.held, account.recent
            if limits.requests_per_minute is not None and held.requests_per_minute is not None:
                left = held.requests_per_minute - recent.times
                if requests is None or left < requests[0]:
                    requests = left, limits.requests_per_minute, recent.times, recent
            if limits.tokens_per_minute is not None and held.tokens_per_minute is not None:
                left = held.tokens_per_minute - recent.amount
                if tokens is None or left < tokens[0]:
                    tokens = left, limits.tokens_per_minute, recent.amount, recent
            if limits.tokens_per_day is not None and held.tokens_per_day is not None:
                used = account.spent("tokens_per_day", day)
                if tokens is None or held.tokens_per_day - used < tokens[0]:
                    tokens = held.tokens_per_day - used, limits.tokens_per_day, used, None
        return _lines(_REQUESTS_LEFT, requests, now, wall) + _lines(_TOKENS_LEFT, tokens, now, wall)

    def report(self, now: float, wall: float) -> tuple[dict[str, Used], dict[str, Limits]]:
        """What was let in and what it goes by, by subject; those that have long been quiet are forgotten."""
        periods = self._now(wall)
        self._accounts = {name: one for name, one in self._accounts.items() if not one.idle(now, periods)}
        used = {name: account.used(now, periods) for name, account in self._accounts.items()}
        return used, self._told() | {name: account.held for name, account in self._accounts.items()}

    def _told(self) -> dict[str, Limits]:
        """The shares that it would go by, should anybody ask: control may have forgotten them."""
        told = self._leases.shares.get(self._index, _NO_SHARES)
        over = {kind: None for kind in BUDGETS if self._leases.periods.get(kind) != self.periods[kind]}
        return {name: msgspec.structs.replace(share, **over) for name, share in told.items()} if over else told

    # --- refusals in words

    def limited_to(self, subject: Subject, kind: str) -> str:
        """Who is limited to what: `tenant acme is limited to 60 requests per minute`."""
        return f"{subject.name} is limited to {self._amount(kind, getattr(subject.limits, kind))} {_PER[kind]}"

    def _words(self, obstacle: Obstacle) -> RateLimited:
        kind, most = obstacle.kind, ceiling(obstacle.limit, self._gateways)
        what = self.limited_to(obstacle.account.subject, kind)
        if kind in _TOKENS or kind == _MONEY:
            what += f", and this request may need {self._amount(kind, obstacle.cost)}"
        if kind == _MONEY and _WORTH_WAITING_S < obstacle.wait_s < math.inf:
            days = math.ceil(obstacle.wait_s / DAY_S)
            words = f"Not enough money is left: {what}. The next month begins in {days} day{'s' if days > 1 else ''}."
            return RateLimited(words, code="insufficient_quota")
        if math.isfinite(obstacle.wait_s):
            wait_s = max(1, math.ceil(obstacle.wait_s))
            words = f"{what}. Try again in {wait_s} second{'s' if wait_s > 1 else ''}."
            return RateLimited(f"Rate limit reached: {words}", code="rate_limit_exceeded", retry_after_s=wait_s)
        if kind not in _TOKENS and kind != _MONEY:
            return RateLimited(f"Rate limit reached: {what}.", code="rate_limit_exceeded")
        if most < obstacle.limit:
            most_of_one = self._amount(kind, most)
            what += f"; with {self._gateways} gateways no single request can have more than {most_of_one}"
        return RateLimited(f"The request is too large: {what}.", code="request_too_large")

    def _amount(self, kind: str, amount: int) -> str:
        return format_money(amount, self._currency) if kind == _MONEY else str(amount)


def _cuts(limits: Limits) -> bool:
    return limits.cut_streams and limits.money_per_month is not None


def _lines(template: bytes, least: _Left | None, now: float, wall: float) -> bytes:
    """Of the subject with the least left."""
    if least is None:
        return b""
    left, limit, used, window = least
    reset_s = 0.0 if not used else rest_s("tokens_per_day", wall) if window is None else window.rest_s(now)
    return template % (limit, max(0, left), _duration(math.ceil(reset_s)))


@lru_cache
def _duration(seconds: int) -> bytes:
    """As OpenAI writes it: `1s`, `6m0s`."""
    hours, rest = divmod(seconds, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, rest)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
