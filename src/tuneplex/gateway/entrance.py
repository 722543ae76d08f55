"""The last doors before the waiting room: whether a request fits, what its limits say, and its entry in the journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tuneplex.errors import ApiError, Unavailable
from tuneplex.gateway.admission import Admission, Ticket
from tuneplex.gateway.aside import Aside
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.estimate import Estimate, by_size, fits_by_size
from tuneplex.gateway.finding import Found
from tuneplex.gateway.ledger import Ledger
from tuneplex.gateway.money import cost_of
from tuneplex.gateway.principals import subjects
from tuneplex.gateway.tokens import TokenCounter
from tuneplex.gateway.waiting import Room
from tuneplex.identity import Subject
from tuneplex.types import FleetView

__all__ = ["Entrance", "Hall"]

_UNKNOWN = Estimate(0, 0)
_DISK_S = 2.0
_RETRY_S = 5


class Hall(Protocol):
    """Who knows the fleet, and answers.

    Attributes:
        view: The fleet.
    """

    view: FleetView

    def find(self, asked: Asked) -> Found:
        """The replicas that may take a request now; where there are none, those that will."""

    def reconsider(self, asked: Asked) -> None:
        """Find its model and its caller anew."""

    def guarded(self, asked: Asked, work: Callable[[], None]) -> None:
        """Go on with it; whatever goes wrong is answered."""


class Entrance:
    """Lets requests into the waiting room.

    Args:
        hall: Knows the fleet.
        ledger: Has the journal.
        admission: Knows the limits.
        room: Takes those that are let in.
        counter: Counts tokens.
        clock: Seconds that only go forward; limits by the minute go by it.
        wall: Unix time; limits by the day go by it.
    """

    def __init__(
        self,
        hall: Hall,
        ledger: Ledger,
        *,
        admission: Admission,
        room: Room,
        counter: TokenCounter,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._hall = hall
        self._ledger = ledger
        self._admission = admission
        self._room = room
        self._counter = counter
        self._clock = clock
        self._wall = wall
        self._limited: dict[str, tuple[Subject, ...]] = {}  # the models with limits
        self._context: int | None = None  # the smallest there is
        self._aside: set[Aside] = set()

    def __len__(self) -> int:
        """How many requests something else is done for first."""
        return len(self._aside)

    @property
    def limits_models(self) -> bool:
        """Whether any model has limits."""
        return bool(self._limited)

    def update(self, view: FleetView) -> None:
        """Go by this view from now on."""
        self._context = min((one.context for one in view.replicas if one.context is not None), default=None)
        self._admission.share_among(view.gateways)
        self._admission.count_in(view.settings.currency)
        limited = ((name, subjects(f"model {name}", model.limits)) for name, model in view.models.items())
        self._limited = {name: subject for name, subject in limited if subject}

    def expired(self, now: float) -> list[tuple[Asked, ApiError]]:
        """Those for which it has taken too long, with what to tell them; `now` is of `time.monotonic`."""
        late = [one for one in self._aside if one.until <= now]
        return [(one.asked, one.expire()) for one in late]

    def leave(self) -> list[Asked]:
        """Nothing more is done for any: they are to be told."""
        gone = list(self._aside)
        for one in gone:
            one.leave()
        return [one.asked for one in gone]

    def enter(self, asked: Asked, found: Found) -> None:
        """Let a request in, now or when all that has to be done for it first is done.

        Raises:
            ApiError: It is not let in.
        """
        if self._fits_by_size(asked) and self._is_let_in_by_size(asked):
            self._enter(asked, found)
        else:
            self._count_first(asked, found)

    # --- its size

    def _fits_by_size(self, asked: Asked) -> bool:
        context = self._context
        return context is None or fits_by_size(asked.exchange.received, asked.route, asked.fields, context)

    def _is_let_in_by_size(self, asked: Asked) -> bool:
        """Let it in by its size alone, if all limits have room for a token a byte; False if they have to be counted."""
        limited = self._limiting(asked)
        if not any(map(_counts_tokens, limited)):
            return True
        found = by_size(asked.route, asked.fields)
        if found is None:
            return False
        asked.needed, most = found
        now, wall = self._clock(), self._wall()
        cost = cost_of(asked.model.price, most, stream=asked.stream)
        ticket = self._admission.try_admit(limited, most.prompt + most.completion, now, wall, cost)
        if ticket is None:
            return self._admission.is_full(limited, now, wall)  # then it is refused, whatever it needs
        asked.ticket = ticket
        asked.exchange.extra += self._admission.headers(limited, now, wall)
        return True

    def _count_first(self, asked: Asked, found: Found) -> None:
        """Count its tokens, and let it in then."""
        contexts = [replica.context for replica in found[0] or found[1]]
        most = None if None in contexts else max(one for one in contexts if one is not None)

        def counted(needed: Estimate) -> None:
            counting.over()
            if asked.why is not None:
                asked.why.counted()
            asked.needed = needed
            asked.large = self._context is not None and needed.whole > self._context
            self._go_on(asked)

        pending = self._counter.count(asked.route, asked.fields, counted, most=most)
        words = "Too many large requests are being counted. Try again later."
        late = Unavailable(words, code="waited_too_long", retry_after_s=_RETRY_S)
        longest_s = self._hall.view.settings.waiting.longest_s
        counting = self._set_aside(asked, pending.cancel, late, longest_s)

    # --- the journal

    def _keep_first(self, asked: Asked) -> None:
        """Let it in when its entry in the journal is on the disk.

        Raises:
            Unavailable: It cannot be written.
        """
        late = Unavailable(
            "The request cannot be recorded now, and its tenant requires that.",
            code="not_recorded",
            retry_after_s=_RETRY_S,
        )

        def kept() -> None:
            keeping.over()
            asked.kept = True
            self._go_on(asked)

        cancel = self._ledger.scribe.entered(asked, kept)
        if cancel is None:
            raise late
        keeping = self._set_aside(asked, cancel, late, _DISK_S)

    def _set_aside(self, asked: Asked, cancel: Callable[[], object], late: ApiError, longest_s: float) -> Aside:
        until = time.monotonic() + longest_s
        return Aside(asked, self._aside, self._ledger, cancel=cancel, late=late, until=until)

    def _go_on(self, asked: Asked) -> None:
        """Later: meanwhile, anything can have changed."""

        def enter() -> None:
            try:
                self._hall.reconsider(asked)
                found = self._hall.find(asked)
            except BaseException:
                if asked.ticket is not None:
                    asked.ticket.cancel()
                raise
            self._enter(asked, found)

        self._hall.guarded(asked, enter)

    # --- limits, and in

    def _enter(self, asked: Asked, found: Found) -> None:
        # Limits come last, so that what no engine could take is not counted.
        ticket = asked.ticket = asked.ticket or self._admit(asked)
        try:
            if asked.principal.recorded and not asked.kept:
                self._keep_first(asked)
            else:
                self._room.enter(asked, *found)
        except BaseException:
            if ticket is not None:
                ticket.cancel()
            raise

    def _limiting(self, asked: Asked) -> tuple[Subject, ...]:
        """Whose limits it falls under."""
        return asked.principal.subjects + self._limited.get(asked.model.name, ())

    def _admit(self, asked: Asked) -> Ticket | None:
        """Count the request against the limits that it falls under, and tell the client what is left of them."""
        limited, needed = self._limiting(asked), asked.needed
        if not limited:
            return None
        cost = cost_of(asked.model.price, needed or _UNKNOWN, stream=asked.stream)
        now, wall = self._clock(), self._wall()
        try:
            return self._admission.admit(limited, needed.prompt + needed.completion if needed else 0, now, wall, cost)
        finally:
            asked.exchange.extra += self._admission.headers(limited, now, wall)


def _counts_tokens(subject: Subject) -> bool:
    """Whether an estimate of a request's tokens is needed: for limits in tokens, and in what tokens cost."""
    limits = subject.limits
    return (
        limits.tokens_per_minute is not None or limits.tokens_per_day is not None or limits.money_per_month is not None
    )
