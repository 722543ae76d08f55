"""How a stream is read, from its first event on, however many replicas it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tuneplex.engines.journal import Journal
from tuneplex.engines.meters import HiddenUsage, Meter, ResponseUsage, ShownUsage
from tuneplex.engines.rename import Renamer
from tuneplex.engines.watching import Watch
from tuneplex.gateway.gaps import Gaps
from tuneplex.gateway.money import watch_of
from tuneplex.types import Route

if TYPE_CHECKING:
    from tuneplex.gateway.attempt import Attempt

__all__ = ["Reading", "reading_of"]


class Reading(msgspec.Struct):
    """What reads a stream.

    Attributes:
        meter: Sees every event, and decides what the client sees.
        renamer: Puts the client's name of the model in. It is the first replica's: its name stands in all events.
        gaps: When its tokens went to the client.
        watch: Where a limit may end the stream: what it has used.
        journal: Where it can be continued: what has been sent of it.
    """

    meter: Meter
    renamer: Renamer
    gaps: Gaps
    watch: Watch | None = None
    journal: Journal | None = None

    @property
    def is_over(self) -> bool:
        """The journal has ended the stream, at a `stop` that its engine could not see, or could not go on."""
        return self.journal is not None and self.journal.over


def reading_of(attempt: Attempt) -> Reading:
    """For the first attempt that has an answer."""
    asked = attempt.asked
    if asked.route is Route.RESPONSES:
        meter: Meter = ResponseUsage()
    else:
        meter = HiddenUsage(attempt.upstream.telling) if attempt.hides_usage else ShownUsage()
    gaps = Gaps(*attempt.relay.ledger.counters.between_tokens(asked.model.name))
    reading = Reading(meter, attempt.renamer(), gaps)
    if asked.may_be_cut:
        reading.meter = reading.watch = watch_of(asked, attempt.aloud, meter)
    terms = attempt.relay.terms
    if terms is not None and attempt.asks_ids:
        # Outermost, for it makes of a continuation what the others would have seen without.
        reading.meter = reading.journal = Journal(terms, reading.meter, context=attempt.upstream.replica.context)
    return reading
