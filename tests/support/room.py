"""A waiting room with clocks that stand still, replicas that only count, and clients that only read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import msgspec

from tuneplex.engines.usage import Usage
from tuneplex.errors import ApiError, NotFound, Unavailable
from tuneplex.gateway.admission import Admission, Ticket
from tuneplex.gateway.answers import tell
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.attempt import Attempt
from tuneplex.gateway.counters import Counters, Outcome
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.health import Health
from tuneplex.gateway.ledger import Ledger
from tuneplex.gateway.places import Places
from tuneplex.gateway.relay import Relay
from tuneplex.gateway.upstreams import Upstream
from tuneplex.gateway.urgency import Priority
from tuneplex.gateway.waiting import Room
from tuneplex.identity import Principal
from tuneplex.policy import eligible, expected
from tuneplex.types import FleetView, GatewaySettings, Model, Replica, Route, Waiting

__all__ = ["Client", "Stage", "replica"]


def replica(name: str = "r0", *, serves: tuple[str, ...] = ("base", "legal", "contacts"), **fields: Any) -> Replica:  # noqa: ANN401 - the replica's own
    """One with one place, where nothing else is said."""
    fields.setdefault("concurrent", 1)
    return Replica(name, "default", "vllm", f"unix:/{name}", serves={one: one for one in serves}, **fields)


class Client:
    """A client's connection, as its exchange sees it; what it reads is in `read`."""

    def __init__(self) -> None:
        self.transport = cast("asyncio.Transport", self)
        self.paused = False
        self.peer = ""
        self.read = b""
        self.over = False

    def write(self, data: bytes) -> None:
        """Take what was written."""
        assert not self.over
        self.read += data

    leaving = False

    def common_headers(self) -> bytes:
        """None."""
        return b""

    def replied(self, exchange: Exchange) -> None:
        """The reply is complete."""
        exchange.listener = None
        self.over = True


class _Sent:
    """What stands for a relay, and for its attempt: it is over when the test says so."""

    reading = None

    def __init__(self, asked: Asked, to: Replica) -> None:
        self.asked = asked
        self.exchange = asked.exchange
        self.upstream = cast("Upstream", msgspec.defstruct("To", ["replica"])(to))
        self.used: Usage | None = None
        self.pool = to.pool

    def elapsed_s(self) -> float:
        """No time at all."""
        return 0.0


class _Taken(Ticket):
    """A ticket that counts what becomes of it."""

    __slots__ = ("cancelled", "settled")

    def __init__(self) -> None:
        super().__init__(Admission(0), [], 0)
        self.cancelled = 0
        self.settled = 0

    def settle(self, tokens: int | None, money: int | None = 0) -> None:  # noqa: ARG002 - it counts calls
        """It is over."""
        self.settled += 1

    def cancel(self) -> None:
        """It was none."""
        self.cancelled += 1


class Stage:
    """The room, and everything around it.

    Attributes:
        now: The clock; `wall` is the same one.
        sent: What went to replicas, in this order, and where.
        errors: What was refused, and with what.
        broken: Sending fails with this.
    """

    def __init__(self, *replicas: Replica, gateways: int = 1, **waiting: Any) -> None:  # noqa: ANN401 - of `Waiting`
        self.now = 1000.0
        self.sent: list[tuple[Asked, str]] = []
        self.errors: dict[Asked, ApiError] = {}
        self.broken: Exception | None = None
        self.ledger = Ledger(Counters())
        self.doubted: set[str] = set()
        self.health = Health(self.ledger.counters, lambda: None, self._clock)
        self.places = Places(0, self.ledger, self.doubted, self.health, self._clock)
        self.room = Room(self, self.ledger, self.places, soon=self._soon, clock=self._clock, wall=self._clock)
        self.ledger.on_began = self.places.began
        self.ledger.on_ended = self.places.ended
        self.ledger.on_closed = self.room.closed
        self.view = FleetView(settings=GatewaySettings(waiting=Waiting(**waiting)), gateways=gateways)
        self._coming: list[Callable[[], None]] = []
        self._relays: dict[Asked, _Sent] = {}
        self.show(*replicas)

    def _clock(self) -> float:
        return self.now

    def _soon(self, work: Callable[[], None]) -> None:
        self._coming.append(work)

    def show(self, *replicas: Replica, models: tuple[str, ...] = ("legal", "contacts")) -> None:
        """A new view."""
        known = {"base": Model("base", "base")} | {name: Model(name, name, "base") for name in models}
        self.view = msgspec.structs.replace(self.view, replicas=replicas, models=known)
        self.places.update(self.view)
        self.room.changed(self.view.settings.waiting)
        self.run()

    def settle(self, **waiting: Any) -> None:  # noqa: ANN401 - of `Waiting`
        """Change the bounds."""
        settings = GatewaySettings(waiting=Waiting(**waiting))
        self.view = msgspec.structs.replace(self.view, settings=settings)
        self.room.changed(settings.waiting)
        self.run()

    def run(self) -> None:
        """Let everything happen that was put off."""
        while self._coming:
            self._coming.pop(0)()

    def wait(self, seconds: float) -> None:
        """Let time pass, as the gateway sees it: ten times a second."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.room.tick(self.now)
            self.run()

    # --- what clients do

    def asked(
        self,
        model: str = "base",
        *,
        tenant: str = "acme",
        weight: int = 1,
        stream: bool = False,
        priority: Priority = Priority.NORMAL,
        within: float = math.inf,
        size: int = 400,
        longest: int = 100,
        route: Route = Route.CHAT,
    ) -> Asked:
        """A request that has come, and has not been looked at."""
        exchange = Exchange(Client(), "POST", "/v1/chat/completions", {})
        exchange.received = size
        exchange.request_id = b"id"
        asked = Asked(
            exchange,
            Principal(tenant, "key", weight=weight),
            Model(model, model, None if model == "base" else "base"),
            route,
            shown=model,
            stream=stream,
            fields={"max_tokens": msgspec.Raw(b"%d" % longest)},
            tally=self.ledger.counters.tally("chat", model),
            priority=priority,
            deadline=self.now + within,
        )
        asked.ticket = _Taken()
        return asked

    def ask(self, model: str = "base", **fields: Any) -> Asked:  # noqa: ANN401 - of `asked`
        """A request that has come to the room; an error is in `errors`."""
        asked = self.asked(model, **fields)
        try:
            self.room.enter(asked, *self.find(asked))
        except ApiError as error:
            assert asked.ticket is not None
            asked.ticket.cancel()
            self.answer(asked, error)
        return asked

    def leave(self, asked: Asked) -> None:
        """The client leaves."""
        asked.exchange.gone = True
        assert asked.exchange.listener is not None
        asked.exchange.listener.client_gone()
        self.run()

    def read(self, asked: Asked) -> str:
        """What its client has read."""
        return cast("Client", asked.exchange.transport).read.decode()

    def pause(self, asked: Asked, *, paused: bool = True) -> None:
        """Its client stops reading, or goes on."""
        cast("Client", asked.exchange.transport).paused = paused

    # --- what replicas do

    def finish(
        self,
        asked: Asked,
        used: tuple[int, int] = (100, 100),
        outcome: Outcome = Outcome.COMPLETE,
        *,
        exact: bool = True,
    ) -> None:
        """Its reply is complete, and has taken so many tokens of prompt and completion."""
        relay = self._relays.pop(asked)
        relay.used = Usage(*used, exact=exact)
        self.close(relay, outcome)
        self.run()

    def close(self, sent: _Sent, outcome: Outcome = Outcome.COMPLETE) -> None:
        """Its attempt ends, and it with that."""
        self.ledger.ended(cast("Attempt", sent))
        self.ledger.closed(cast("Relay", sent), outcome)

    @property
    def under_way(self) -> list[Asked]:
        """What replicas work on, the oldest first."""
        return [asked for asked, _ in self.sent if asked in self._relays]

    def tickets(self, asked: Asked) -> tuple[int, int]:
        """How often its ticket was cancelled, and settled."""
        ticket = cast("_Taken", asked.ticket)
        return ticket.cancelled, ticket.settled

    def left_behind(self) -> dict[str, object]:
        """Everything that should be empty when nobody asks anything any more."""
        room = self.room
        found = {
            "waiters": len(room),
            "bytes": room.bytes,
            "queue": len(room._queue),
            "versions": dict(self.places._waiting),
            "outstanding": self.ledger.outstanding,
            "relays": self.ledger.relays,
            "busy": self.places.slots.busy,
            "closing": self.places.slots.closing,
        }
        return {name: left for name, left in found.items() if left}

    # --- the desk

    def find(self, asked: Asked) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
        """As the gateway does it."""
        ready = eligible(asked.principal, asked.model, asked.route, self.view.replicas)
        coming = () if ready else expected(asked.principal, asked.model, asked.route, self.view.replicas)
        if not ready and not coming:
            raise Unavailable("none", code="no_ready_engine", retry_after_s=2)
        return ready, coming

    def coming(self, asked: Asked) -> tuple[Replica, ...]:
        """As the gateway does it."""
        return expected(asked.principal, asked.model, asked.route, self.view.replicas)

    def reconsider(self, asked: Asked) -> None:
        """As the gateway does it."""
        if asked.model.name not in self.view.models:
            raise NotFound("gone", code="model_not_found")

    def send(self, asked: Asked, replica: Replica) -> None:
        """Count it as sent."""
        if self.broken is not None:
            raise self.broken
        sent = self._relays[asked] = _Sent(asked, replica)
        self.ledger.began(cast("Attempt", sent))
        asked.exchange.listener = None
        self.sent.append((asked, replica.name))

    def answer(self, asked: Asked, error: ApiError) -> None:
        """Remember the error."""
        assert asked not in self.errors
        self.errors[asked] = error
        tell(asked.exchange, asked.route, error)

    def fail(self, asked: Asked) -> None:
        """Remember that there was one."""
        self.answer(asked, ApiError("a defect", code="internal_error"))
