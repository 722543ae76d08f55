"""What requests cost, in picos of the fleet's currency, and streams that a limit in money may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuneplex.engines.meters import Meter
from tuneplex.engines.usage import Aloud, Usage
from tuneplex.engines.watching import Watch, WatchedChoices, WatchedResponse
from tuneplex.gateway.admission import FREE, Cost
from tuneplex.gateway.answers import StreamAnswer
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.estimate import Estimate
from tuneplex.types import Price, Route

if TYPE_CHECKING:
    from tuneplex.gateway.attempt import Attempt
    from tuneplex.gateway.reading import Reading

__all__ = ["CutStream", "cost_of", "spent", "watch_of"]


def cost_of(price: Price | None, needed: Estimate, *, stream: bool) -> Cost:
    """What a request may cost: what is reserved for it, and what must at least be left.

    A stream can be ended when the money is gone, so it needs no more than its prompt and one token of the answer.
    """
    if price is None:
        return FREE
    most = price.of(needed.prompt, needed.completion)
    return Cost(most, price.of(needed.prompt, min(1, needed.completion)) if stream else most)


def spent(price: Price | None, used: Usage) -> int:
    """What a request has cost."""
    return 0 if price is None else price.of(used.prompt, used.completion, used.cached)


class CutStream(StreamAnswer):
    """A stream that ends when it has cost more than there is left of a limit that may cut it.

    Args:
        attempt: See `StreamAnswer`.
        reading: See `StreamAnswer`.
        watch: Its watch, which knows what the stream has used.
    """

    __slots__ = ("_watch",)

    def __init__(self, attempt: Attempt, reading: Reading, watch: Watch) -> None:
        super().__init__(attempt, reading)
        self._watch = watch

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Pass on the events that are complete, and end the stream if they were too dear."""
        super().reply_data(data, done)
        relay, watch = self._attempt.relay, self._watch
        ticket = relay.asked.ticket
        if self._attempt.over or ticket is None or not watch.open:
            return
        limit = ticket.ended_by(spent(relay.asked.model.price, relay.with_prompt(watch.so_far())))
        if limit:
            self._cut(f"{limit}, and nothing is left")

    def _cut(self, why: str) -> None:
        """End it as a limit on its length would, and say why in a comment and in a field of our own."""
        attempt, watch = self._attempt, self._watch
        told = attempt.aloud is None or attempt.aloud.usage
        usage = attempt.relay.with_prompt(watch.so_far()) if told else None
        ending = watch.ending({"ended_by": "money_per_month", "message": f"The stream was ended: {why}."}, usage)
        comment = f": ended by a limit: {why}\n\n".encode()
        self._exchange.finish(self._rename(watch.rest()) + comment + self._rename(ending))
        attempt.relay.close(Outcome.CUT)


def watch_of(asked: Asked, aloud: Aloud | None, inner: Meter) -> Watch:
    """Reads a stream that may be ended.

    Args:
        asked: What was asked.
        aloud: What the client has asked for of the usage; None if it could not be read.
        inner: Decides what the client sees.
    """
    if asked.route is Route.RESPONSES:
        return WatchedResponse(inner)
    needed = asked.needed
    choices, prompts = (1, 1) if needed is None else (needed.choices, needed.prompts)
    return WatchedChoices(inner, choices=choices, prompts=prompts, shown=aloud is not None and aloud.always)
