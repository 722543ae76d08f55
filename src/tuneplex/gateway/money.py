"""What requests cost, in picos of the fleet's currency, and streams that a limit in money may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuneplex.engines.meters import Meter
from tuneplex.engines.usage import Usage
from tuneplex.engines.watching import Watch, WatchedChoices, WatchedResponse
from tuneplex.gateway.admission import FREE, Cost
from tuneplex.gateway.answers import StreamAnswer
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.estimate import Estimate
from tuneplex.types import Price, Route

if TYPE_CHECKING:
    from tuneplex.gateway.relay import Relay

__all__ = ["CutStream", "cost_of", "spent"]


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
    """A stream that ends when it has cost more than there is left of a limit that may cut it."""

    __slots__ = ("_watch",)

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self._meter = self._watch = _watch(relay, self._meter)

    def reply_data(self, data: bytes, done: bool) -> None:  # noqa: FBT001 - see `Receiver`
        """Pass on the events that are complete, and end the stream if they were too dear."""
        super().reply_data(data, done)
        relay = self._relay
        if relay.over or relay.order.ticket is None or not self._watch.open:
            return
        limit = relay.order.ticket.ended_by(spent(relay.order.model.price, relay.with_prompt(self._watch.so_far())))
        if limit:
            self._cut(f"{limit}, and nothing is left")

    def _cut(self, why: str) -> None:
        """End it as a limit on its length would, and say why in a comment and in a field of our own."""
        relay, watch = self._relay, self._watch
        told = relay.aloud is None or relay.aloud.usage
        usage = relay.with_prompt(watch.so_far()) if told else None
        ending = watch.ending({"ended_by": "money_per_month", "message": f"The stream was ended: {why}."}, usage)
        comment = f": ended by a limit: {why}\n\n".encode()
        self._exchange.finish(self._rename(watch.rest()) + comment + self._rename(ending))
        relay.close(Outcome.CUT)


def _watch(relay: Relay, inner: Meter) -> Watch:
    order = relay.order
    if order.route is Route.RESPONSES:
        return WatchedResponse(inner)
    shown = relay.aloud is not None and relay.aloud.always
    return WatchedChoices(inner, choices=order.choices, prompts=order.prompts, shown=shown)
