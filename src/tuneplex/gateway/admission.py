"""Whether a request is let in, by the limits of its tenant, its key and its model.

All of it is in memory and takes a few microseconds; a caller without limits never comes here. A request is checked
against everything at once and counted everywhere or nowhere. What it may need is reserved; when it is over, what it
really used takes the reservation's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tuneplex.errors import RateLimited
from tuneplex.gateway.accounts import DAY_S, Account, Obstacle, Taken
from tuneplex.identity import Limits, Subject
from tuneplex.policy import ceiling, floor
from tuneplex.types import Leases, Used

__all__ = ["Admission", "Ticket"]

# How long a share takes to move to where it is wanted, if nobody has used it.
_MOVING_S = 5.0
_NO_LIMITS = Limits()
_NO_SHARES: dict[str, Limits] = {}
_PER = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "tokens_per_day": "tokens per day",
    "concurrent": "requests at a time",
}
_TOKENS = frozenset({"tokens_per_minute", "tokens_per_day"})
_MINUTE_S, _HOUR_S = 60, 3600


class Ticket:
    """A request that was let in, until it is over."""

    __slots__ = ("_day", "_taken", "_tokens")

    def __init__(self, taken: list[Taken], tokens: int, day: int) -> None:
        self._taken = taken
        self._tokens = tokens
        self._day = day

    def settle(self, tokens: int | None) -> None:
        """It is over, and has really used so many tokens; with None nobody knows, and the reservation stays."""
        by = 0 if tokens is None else tokens - self._tokens
        for taken in self._taken:
            taken.account.concurrent -= 1
            if by:
                taken.account.correct(taken, by, self._day)
        self._taken = []

    def cancel(self) -> None:
        """It was none: no engine was asked."""
        for taken in self._taken:
            taken.account.requests.correct(taken.request, -1)
        self.settle(0)


class Admission:
    """What this gateway may let in, and what it has.

    Args:
        index: Which gateway this is.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._gateways = 1
        self._leases = Leases()
        self._first_leases = 0
        self._day = 0
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
            tokens_per_day=self._part(limits.tokens_per_day, self._today_share(name, share), divided.tokens_per_day),
            concurrent=self._part(limits.concurrent, share.concurrent, divided.concurrent),
        )

    def _part(self, limit: int | None, share: int | None, divided: int | None) -> int | None:
        """The share that it was told, unless the limit has been lowered since."""
        if limit is None:
            return None
        least = floor(limit, self._gateways)
        if share is None or divided is None:
            return least
        return share if divided <= limit else min(share, least)

    def _today_share(self, name: str, share: Limits) -> int | None:
        """The share of today, if it was told one.

        The first that a process is told was meant for the one before it, and what that one has used is gone.
        """
        if share.tokens_per_day is None or self._leases.day != self._day:
            return None
        if self._leases.generation != self._first_leases:
            return share.tokens_per_day
        return min(share.tokens_per_day, floor(self._leases.left.get(name, 0), self._gateways))

    # --- requests

    def admit(self, subjects: Sequence[Subject], tokens: int, now: float, wall: float) -> Ticket:
        """Let a request in that may need so many tokens.

        Args:
            subjects: Whose limits it counts against.
            tokens: To reserve.
            now: Of a clock that only goes forward.
            wall: Unix time, which says what day it is.

        Raises:
            RateLimited: At least one limit stands against it; nothing was counted.
        """
        day = self._today(wall)
        accounts = [self._account(subject) for subject in subjects]
        for account in accounts:
            if account.refuses(tokens, now, day):
                raise self._refusal(accounts, tokens, now, wall)
        return Ticket([account.take(tokens, now, day) for account in accounts], tokens, day)

    def _today(self, wall: float) -> int:
        day = int(wall // DAY_S)
        if day != self._day:
            self._day = day
            self._hold()
        return day

    def _account(self, subject: Subject) -> Account:
        account = self._accounts.get(subject.name)
        if account is None:
            account = self._accounts[subject.name] = Account(subject)
            account.held = self._held(subject)
        elif account.subject is not subject:  # made anew, as happens at every change of keys or fleet
            account.subject = subject
            account.held = self._held(subject)
        return account

    def _refusal(self, accounts: Iterable[Account], tokens: int, now: float, wall: float) -> RateLimited:
        """What to say: of several limits the one that lasts longest, so that waiting for it is enough."""
        found = [self._likely(one) for account in accounts for one in account.obstacles(tokens, now, wall)]
        for one in found:
            one.account.refused_for(one, now)
        for account in {id(one.account): one.account for one in found}.values():
            account.refused += 1
        return _words(max(found, key=lambda one: one.wait_s), self._gateways)

    def _likely(self, obstacle: Obstacle) -> Obstacle:
        """When there will be room, as far as this gateway can tell: its own share may also grow."""
        limit, cost = obstacle.limit, obstacle.cost
        if cost > ceiling(limit, self._gateways):
            return obstacle._replace(wait_s=math.inf)
        if self._gateways == 1:
            return obstacle
        if obstacle.kind == "tokens_per_day":
            left = self._leases.left.get(obstacle.account.subject.name, limit)
            return obstacle._replace(wait_s=_MOVING_S) if cost <= ceiling(left, self._gateways) else obstacle
        return obstacle._replace(wait_s=_MOVING_S) if cost > obstacle.held else obstacle

    # --- what is told of it

    def headers(self, subjects: Iterable[Subject], now: float, wall: float) -> bytes:
        """Header lines that say how much this caller can still ask."""
        accounts = [self._account(subject) for subject in subjects]
        requests = [
            (held - account.requests.total(now), limit, account.requests.rest_s(now))
            for account in accounts
            if (limit := account.subject.limits.requests_per_minute) is not None
            and (held := account.held.requests_per_minute) is not None
        ]
        tokens = [one for account in accounts for one in self._tokens_left(account, now, wall)]
        return _lines(b"requests", requests) + _lines(b"tokens", tokens)

    def _tokens_left(self, account: Account, now: float, wall: float) -> Iterator[tuple[int, int, float]]:
        limits, held = account.subject.limits, account.held
        if limits.tokens_per_minute is not None and held.tokens_per_minute is not None:
            yield (
                held.tokens_per_minute - account.tokens.total(now),
                limits.tokens_per_minute,
                account.tokens.rest_s(now),
            )
        if limits.tokens_per_day is not None and held.tokens_per_day is not None:
            used = account.day_tokens(self._today(wall))
            yield held.tokens_per_day - used, limits.tokens_per_day, DAY_S - wall % DAY_S if used else 0.0

    def report(self, now: float, wall: float) -> tuple[dict[str, Used], dict[str, Limits]]:
        """What was let in and what it goes by, by subject; those that have long been quiet are forgotten."""
        day = self._today(wall)
        self._accounts = {name: one for name, one in self._accounts.items() if not one.idle(now, day)}
        used = {name: account.used(now, day) for name, account in self._accounts.items()}
        return used, self._told() | {name: account.held for name, account in self._accounts.items()}

    def _told(self) -> dict[str, Limits]:
        """The shares that it would go by, should anybody ask: control may have forgotten them."""
        told = self._leases.shares.get(self._index, _NO_SHARES)
        if self._leases.day == self._day:
            return told
        return {name: msgspec.structs.replace(share, tokens_per_day=None) for name, share in told.items()}


def _words(obstacle: Obstacle, gateways: int) -> RateLimited:
    name, kind, limit = obstacle.account.subject.name, obstacle.kind, obstacle.limit
    what = f"{name} is limited to {limit} {_PER[kind]}"
    if kind in _TOKENS:
        what += f", and this request may need {obstacle.cost}"
    if math.isfinite(obstacle.wait_s):
        wait_s = max(1, math.ceil(obstacle.wait_s))
        words = f"{what}. Try again in {wait_s} second{'s' if wait_s > 1 else ''}."
        return RateLimited(f"Rate limit reached: {words}", code="rate_limit_exceeded", retry_after_s=wait_s)
    most = ceiling(limit, gateways)
    if kind not in _TOKENS:
        return RateLimited(f"Rate limit reached: {what}.", code="rate_limit_exceeded")
    if most < limit:
        what += f"; with {gateways} gateways no single request can have more than {most}"
    return RateLimited(f"The request is too large: {what}.", code="request_too_large")


def _lines(what: bytes, found: list[tuple[int, int, float]]) -> bytes:
    """Of the subject with the least left."""
    if not found:
        return b""
    left, limit, reset_s = min(found)
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
        what,
        limit,
        what,
        max(0, left),
        what,
        _duration(math.ceil(reset_s)),
    )


def _duration(seconds: int) -> bytes:
    """As OpenAI writes it: `1s`, `6m0s`."""
    hours, rest = divmod(seconds, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, rest)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
