"""What this gateway has let in of one tenant, key or model with limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tuneplex.identity import Limits, Subject
from tuneplex.policy import MINUTE_S, Cell, Window
from tuneplex.types import Used

__all__ = ["DAY_S", "Account", "Obstacle", "Taken"]

DAY_S = 86400
_CONCURRENT_WAIT_S = 1.0
_WANTED_S = {"requests_per_minute": MINUTE_S, "tokens_per_minute": MINUTE_S, "tokens_per_day": 5, "concurrent": 5}
_DAYS_KEPT = 3


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


class Taken(NamedTuple):
    """Where a request was counted."""

    account: Account
    request: Cell
    tokens: Cell


class Account:
    """What was let in of one subject.

    Attributes:
        subject: Whose account it is, with its limits for all gateways together.
        held: What this gateway may let in.
        concurrent: Requests under way.
        refused: Requests refused so far.
        requests: Of the last minute.
        tokens: Of the last minute, reserved or used.
    """

    __slots__ = ("_days", "_missed", "concurrent", "held", "refused", "requests", "subject", "tokens")

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.held = Limits()
        self.concurrent = 0
        self.refused = 0
        self.requests = Window()
        self.tokens = Window()
        self._days: dict[int, int] = {}
        self._missed: dict[str, Window] = {}

    # --- the usual way

    def refuses(self, tokens: int, now: float, day: int) -> bool:
        """Whether a limit stands against a request that needs so many tokens."""
        held = self.held
        return (
            (held.requests_per_minute is not None and self.requests.total(now) >= held.requests_per_minute)
            or (held.concurrent is not None and self.concurrent >= held.concurrent)
            or (held.tokens_per_minute is not None and self.tokens.total(now) + tokens > held.tokens_per_minute)
            or (held.tokens_per_day is not None and self._days.get(day, 0) + tokens > held.tokens_per_day)
        )

    def take(self, tokens: int, now: float, day: int) -> Taken:
        """Count a request."""
        self.concurrent += 1
        self._add_to_day(day, tokens)
        return Taken(self, self.requests.add(now, 1), self.tokens.add(now, tokens))

    def correct(self, taken: Taken, by: int, day: int) -> None:
        """Count more tokens, or fewer, where a request was counted."""
        self.tokens.correct(taken.tokens, by)
        self._add_to_day(day, by)

    def day_tokens(self, day: int) -> int:
        """Tokens of a day of UTC, reserved or used."""
        return self._days.get(day, 0)

    def _add_to_day(self, day: int, amount: int) -> None:
        """The few days that were current last are kept, lest a clock that jumps there and back gives one away twice."""
        days = self._days
        days[day] = max(0, days.pop(day, 0) + amount)  # now the last one in order
        if len(days) > _DAYS_KEPT:
            del days[next(iter(days))]

    # --- refusals

    def obstacles(self, tokens: int, now: float, wall: float) -> Iterator[Obstacle]:
        """Every limit that stands against a request."""
        held, used_today = self.held, self.day_tokens(int(wall // DAY_S))
        for kind, share, cost in (
            ("requests_per_minute", held.requests_per_minute, 1),
            ("tokens_per_minute", held.tokens_per_minute, tokens),
            ("tokens_per_day", held.tokens_per_day, tokens),
            ("concurrent", held.concurrent, 1),
        ):
            if share is None:
                continue
            match kind:
                case "requests_per_minute":
                    wait_s = self.requests.wait_s(now, share - cost)
                case "tokens_per_minute":
                    wait_s = self.tokens.wait_s(now, share - cost)
                case "tokens_per_day":
                    wait_s = 0.0 if used_today + cost <= share else DAY_S - wall % DAY_S
                case _:
                    wait_s = 0.0 if self.concurrent < share else _CONCURRENT_WAIT_S
            if wait_s > 0:
                yield Obstacle(self, kind, getattr(self.subject.limits, kind), share, cost, wait_s)

    def refused_for(self, obstacle: Obstacle, now: float) -> None:
        """Note what was wanted in vain, so that control can see where more is wanted."""
        if obstacle.kind not in self._missed:
            self._missed[obstacle.kind] = Window(_WANTED_S[obstacle.kind])
        self._missed[obstacle.kind].add(now, min(obstacle.cost, obstacle.limit))

    # --- for control

    def used(self, now: float, day: int) -> Used:
        """What was let in and what was wanted."""
        requests, tokens = self.requests.total(now), self.tokens.total(now)
        return Used(
            requests=requests,
            tokens=tokens,
            day=day,
            day_tokens=self.day_tokens(day),
            concurrent=self.concurrent,
            refused=self.refused,
            wanted=Limits(
                requests_per_minute=self._wanted("requests_per_minute", now, requests),
                tokens_per_minute=self._wanted("tokens_per_minute", now, tokens),
                tokens_per_day=self._wanted("tokens_per_day", now, tokens),
                concurrent=self._wanted("concurrent", now, self.concurrent),
            ),
        )

    def _wanted(self, kind: str, now: float, used: int) -> int | None:
        limit, missed = getattr(self.subject.limits, kind), self._missed.get(kind)
        return None if limit is None else min(limit, used + (missed.total(now) if missed is not None else 0))

    def idle(self, now: float, day: int) -> bool:
        """Nothing would be lost if it were forgotten."""
        return not (
            self.concurrent
            or self.day_tokens(day)
            or self.requests.total(now)
            or self.tokens.total(now)
            or any(missed.total(now) for missed in self._missed.values())
        )
