"""The gateway: what it knows, and the way of a request through it.

authenticate -> resolve -> eligible -> admit -> wait -> relay. Where tokens have to be counted, that comes before
`eligible`, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import time
from collections.abc import Callable
from functools import partial
from itertools import count

from tuneplex.errors import ApiError, BadRequest, Unavailable
from tuneplex.gateway.access import authenticate, cors_headers, demand, is_loopback
from tuneplex.gateway.admin import AdminSource
from tuneplex.gateway.admission import Admission
from tuneplex.gateway.answers import tell
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.body import Body, read_body
from tuneplex.gateway.choosing import as_it_is_now, known_model, tried
from tuneplex.gateway.counters import Counters, Outcome
from tuneplex.gateway.doubts import Doubts
from tuneplex.gateway.entrance import Entrance
from tuneplex.gateway.exchange import Exchange
from tuneplex.gateway.finding import Found, coming, find
from tuneplex.gateway.health import Health
from tuneplex.gateway.idempotency import Idempotency
from tuneplex.gateway.keyed import KEY
from tuneplex.gateway.ledger import Ledger
from tuneplex.gateway.places import Places
from tuneplex.gateway.principals import Principals, principals
from tuneplex.gateway.relay import Relay
from tuneplex.gateway.replies import Replies
from tuneplex.gateway.returns import Returns
from tuneplex.gateway.routes import Page, Target, find_target
from tuneplex.gateway.scribe import Scribe, Writes
from tuneplex.gateway.site import MetricsSource, Site
from tuneplex.gateway.tokens import TokenCounter
from tuneplex.gateway.upstreams import Upstreams
from tuneplex.gateway.urgency import read_deadline, read_priority
from tuneplex.gateway.waiting import Room, stopping
from tuneplex.gateway.why import read_why, refuse_why
from tuneplex.identity import Access, Grant, Principal
from tuneplex.log import get_logger
from tuneplex.types import FleetView, GatewayReport, GatewaySettings, Leases, Model, Replica, Route, Turns

__all__ = ["Gateway"]

_log = get_logger(__name__)

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_NOBODY = Principal("", "", scopes=(), grant=Grant(((),), base=False), isolated=True)


class Gateway:
    """One gateway process's data plane: it answers exchanges by the latest view of the fleet and of its keys.

    Before it has both, it answers nothing but that it is starting.

    Args:
        index: Which of the fleet's gateways this is.
        view: The first view; a fleet without models if there is none yet.
        access: The first keys, if they are known.
        metrics_source: Gives the page for `/metrics` with all gateways and replicas in it; the gateway shows its own
            numbers when there is no source or it fails.
        admin: Answers what is sent on to control; see `AdminSource`.
        replies: Where replies to requests with an `Idempotency-Key` are kept; in memory, for this gateway alone, if
            there is no such place.
        journal: Where it is written down what becomes of requests.
        clock: Seconds that only go forward; limits by the minute go by it.
        wall: Unix time; limits by the day go by it.
    """

    def __init__(
        self,
        index: int = 0,
        view: FleetView | None = None,
        access: Access | None = None,
        *,
        metrics_source: MetricsSource | None = None,
        admin: AdminSource | None = None,
        replies: Replies | None = None,
        journal: Writes | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.index = index
        self.view = FleetView()
        self.access = access
        self.ledger = Ledger(Counters(), Scribe(journal, wall))
        self.counter = TokenCounter()
        self._upstreams = Upstreams()
        self._doubts = Doubts(self._cleared)
        self._health = Health(self.ledger.counters, self._cleared)
        self._places = Places(index, self.ledger, self._doubts, self._health, time.monotonic)
        self._room = Room(self, self.ledger, self._places, soon=_soon, clock=time.monotonic, wall=time.time)
        self._returns = Returns(
            self,
            self.ledger,
            self._places,
            ways=self._upstreams,
            doubts=self._doubts,
            health=self._health,
            tokens=self.counter,
            soon=_soon,
            clock=time.monotonic,
            wall=wall,
            random=random.random,
        )
        self.ledger.on_began = self._returns.began
        self.ledger.on_ended = self._returns.ended
        self.ledger.on_closed = self._room.closed
        self._site = Site(self, metrics_source, admin)
        self.idempotency = Idempotency(self, self.ledger.counters, replies or Replies(), wall)
        self._clock = clock
        self._wall = wall
        self._admission = Admission(index)
        self._entrance = self._doors(clock, wall)
        self._ids = map(f"req-{secrets.token_hex(6)}-%06x".encode().__mod__, count())
        self._principals: Principals | None = None
        self.update(view or FleetView())

    def _doors(self, clock: Callable[[], float], wall: Callable[[], float]) -> Entrance:
        return Entrance(
            self,
            self.ledger,
            admission=self._admission,
            room=self._room,
            counter=self.counter,
            clock=clock,
            wall=wall,
        )

    # --- for the process around it

    def update(self, view: FleetView) -> None:
        """Work by this view from now on; requests under way are not touched, and those that wait go by it."""
        before, self.view = self.view, view
        self._upstreams.update(view.replicas)
        self._doubts.update(view.replicas)
        self._health.update(view.replicas, view.settings.breaking)
        self._places.update(view)
        self.counter.use(view.tokenizer)
        self._entrance.update(view)
        self._site.forget()
        if self._principals is None or not view.models or _keys_differ(before.settings, view.settings):
            self._know()
        self.ledger.scribe.bound(view.settings.journal)
        self.ledger.scribe.traces = view.settings.traces
        self._returns.update(view)
        self._room.changed(view.settings.waiting)

    def update_access(self, access: Access) -> None:
        """Know these keys from now on; requests under way are not touched, and those that wait need a valid one."""
        self.access = access
        self.ledger.scribe.secret = access.salt.encode()
        self._site.forget()
        self._know()
        self._room.changed(self.view.settings.waiting)

    def update_leases(self, leases: Leases) -> None:
        """Go by these shares of limits from now on."""
        self._admission.lease(leases)

    def update_turns(self, turns: Turns) -> None:
        """Go by these shares of the replicas from now on."""
        self._places.update_turns(turns)
        self._room.reweigh(turns.weights.get(self.index, {}))
        self._room.served()

    def control_lost(self) -> None:
        """Nobody tells any more what other gateways have under way; all else stays as it was told last."""
        self._places.forget_others()
        self._room.served()

    @property
    def limited(self) -> bool:
        """Whether anybody or anything has limits."""
        known = self._principals
        callers = (*known.keyed.values(), known.anybody or _NOBODY) if known is not None else ()
        return self._entrance.limits_models or any(principal.subjects for principal in callers)

    def _know(self) -> None:
        """Work out who may call, as soon as both the fleet and its keys are known."""
        known = self.access is not None and self.view.models
        self._principals = principals(self.view.settings, self.access) if self.access and known else None

    def report(self) -> GatewayReport:
        """What control wants to know each second."""
        used, held = self._admission.report(self._clock(), self._wall())
        self.ledger.counters.unrecorded(self.ledger.scribe.lost)
        return GatewayReport(
            gateway=self.index,
            pid=os.getpid(),
            generation=self.view.generation,
            outstanding=dict(self.ledger.outstanding),
            counters=self.ledger.counters.counts(),
            buckets=self.ledger.counters.buckets(),
            used=used,
            held=held,
            leases=self._admission.generation,
            busy={name: dict(versions) for name, versions in self._places.slots.busy.items()},
            demand=self._room.demand(self._returns.wanted()),
            closing=self._places.slots.closing,
            waiting=len(self._room) + len(self._returns),
            shut=self._health.states(),
            unrecorded=self.ledger.scribe.trouble,
            begun={name: dict(counts) for name, counts in self._places.begun.items() if counts},
            wanted=self._places.wanted,
        )

    def tick(self, now: float) -> None:
        """Look after timeouts, and those that wait; `now` is of `time.monotonic`."""
        for relay in tuple(self.ledger.relays):
            relay.tick(now)
        for asked, error in self._entrance.expired(now):
            self.answer(asked, error)
        self._returns.tick(now)
        self._room.tick(now)
        self.ledger.scribe.tick()
        self.idempotency.tick(now)

    def drain(self) -> None:
        """Nothing waits from now on: what would have to is refused, so that somebody else can take it."""
        self._room.close()

    def give_up(self) -> None:
        """Tell those whose replies are still under way that they will not be finished."""
        for asked in self._entrance.leave():
            self.guarded(asked, partial(self.answer, asked, stopping()))
        for relay in tuple(self.ledger.relays):
            self.guarded(relay.asked, partial(relay.give_up, stopping(), Outcome.STOPPED))

    def close(self) -> None:
        """Close the connections to the engines."""
        self._room.close()
        self.ledger.scribe.close()
        self.idempotency.close()
        self._doubts.close()
        self._upstreams.close()
        self.counter.close()

    # --- for client connections (see `protocol.Handler`)

    @property
    def max_body(self) -> int:
        """Bytes of a request body that are accepted."""
        return self.view.settings.max_body

    def head(self, exchange: Exchange) -> None:
        """Name the request, find out what it is for and who sends it.

        Raises:
            ApiError: There is no such path, the key is wrong or not for this, or the fleet is not known yet.
        """
        headers, settings = exchange.headers, self.view.settings
        given = headers.get(b"x-request-id")
        exchange.request_id = given if given is not None and _SANE_ID.fullmatch(given) else next(self._ids)
        if b"origin" in headers:
            exchange.extra = cors_headers(settings, headers[b"origin"])
        if exchange.method == "OPTIONS":
            return
        target = exchange.target = find_target(exchange.method, exchange.path)
        if target.route is None and _is_open(target, exchange):
            return
        self._identify(exchange, target)

    def _identify(self, exchange: Exchange, target: Target) -> None:
        """Find out who sends a request, and whether they may."""
        callers = self.callers()
        principal = authenticate(callers, exchange.headers.get(b"authorization", b""), time.time())
        exchange.principal, exchange.callers = principal, callers
        demand(principal, target.scopes)

    def _identify_again(self, exchange: Exchange, target: Target) -> None:
        """Its head may have come long ago, before a slow body or another request's reply, and keys may have ended."""
        known = exchange.principal
        if known is not None and (exchange.callers is not self._principals or known.expires is not None):
            self._identify(exchange, target)

    def callers(self) -> Principals:
        """Everybody who may call.

        Raises:
            Unavailable: Nobody knows yet.
        """
        if self._principals is None:
            raise Unavailable("The gateway is starting.", code="starting", retry_after_s=1)
        return self._principals

    def handle(self, exchange: Exchange) -> None:
        """Answer a complete request."""
        target = exchange.target
        try:
            if target is None:
                self._site.preflight(exchange)
                return
            self._identify_again(exchange, target)
            if target.route is not None and KEY in exchange.headers:
                refuse_why(exchange)
                self.idempotency.handle(exchange, target, target.route, exchange.principal or _NOBODY)
            elif target.route is not None:
                self._serve(exchange, target, target.route)
            else:
                self._site.show(exchange, target, exchange.principal or _NOBODY)
        except ApiError as error:
            self.refuse(exchange, error)
        except Exception:  # noqa: BLE001 - the last resort: a defect of ours must still be an answer
            self.failed(exchange)

    def failed(self, exchange: Exchange) -> None:
        """Answer a request at which we have failed ourselves, by the exception that was just caught."""
        _log.exception("a request failed", request_id=exchange.request_id.decode())
        self.refuse(exchange, ApiError("The gateway failed at this request.", code="internal_error"))

    def refuse(self, exchange: Exchange, error: ApiError) -> None:
        """Answer with an error in OpenAI's shape."""
        exchange.request_id = exchange.request_id or next(self._ids)
        self.count(exchange, error.status)
        self.ledger.scribe.refused(exchange, error.status, error.code or "")
        self._answer(exchange, error)

    def _answer(self, exchange: Exchange, error: ApiError) -> None:
        if exchange.gone:
            return
        route = exchange.target.route if exchange.target is not None else None
        tell(exchange, route or Route.CHAT, error)

    def count(self, exchange: Exchange, status: int) -> None:
        """Count a reply that no engine was asked for; for the model that was meant, once that is known."""
        tally = exchange.tally
        if tally is None:
            tally = self.ledger.counters.tally(exchange.target.label if exchange.target is not None else "other", "")
        tally.answered(status)

    # --- the way of a request

    def _serve(self, exchange: Exchange, target: Target, route: Route) -> None:
        """A request for a model."""
        asked = self._asked(exchange, target, route, read_body(exchange.body))
        found = self.find(asked)
        self._entrance.enter(asked, found)

    def _asked(self, exchange: Exchange, target: Target, route: Route, body: Body) -> Asked:
        if route is Route.RESPONSES and body.previous_response_id is not None:
            raise BadRequest(
                "Responses are not stored: send the whole conversation in `input` instead of `previous_response_id`.",
                param="previous_response_id",
                code="previous_response_not_supported",
            )
        principal = exchange.principal or _NOBODY
        model, shown = self._resolve(principal, body, target.deployment)
        exchange.model = model
        tally = exchange.tally = self.ledger.counters.tally(target.label, model.name)
        asked = Asked(
            exchange,
            principal,
            model,
            route,
            shown=shown,
            stream=body.stream is True and route is not Route.EMBEDDINGS,  # there it is one more unknown field
            fields=body.fields,
            tally=tally,
            priority=read_priority(exchange.headers),
            deadline=read_deadline(exchange.headers, exchange.started_s),
        )
        asked.pinned = (target.deployment or body.model) in self.view.versions
        if model.trial is not None:
            asked.model = exchange.model = tried(model, asked)
        asked.why = read_why(exchange, principal, asked.model.version)
        return asked

    def _resolve(self, principal: Principal, body: Body, deployment: str | None) -> tuple[Model, str]:
        """The model that is meant, and the name that the client knows it by.

        A deployment's own base URL says the model; what the body says is then only repeated in the reply.
        """
        name = deployment or body.model
        if not name:
            raise BadRequest("The request must name a `model`.", param="model", code="missing_model")
        return known_model(self.view, principal.grant, name), body.model or name

    # --- for the doors and the waiting room (see `entrance.Hall` and `waiting.Desk`)

    def guarded(self, asked: Asked, work: Callable[[], None]) -> None:
        """Go on with a request, later than in `handle`; whatever goes wrong is answered."""
        try:
            work()
        except ApiError as error:
            self.refuse(asked.exchange, error)
        except Exception:  # noqa: BLE001 - the last resort: a defect of ours must still be an answer
            self.failed(asked.exchange)

    def find(self, asked: Asked) -> Found:
        """The replicas that may take a request now; where there are none, those that will."""
        return find(asked, self.view.replicas)

    def coming(self, asked: Asked) -> tuple[Replica, ...]:
        """The replicas that will be able to take a request, whether there are others or not."""
        return coming(asked, self.view.replicas)

    def reconsider(self, asked: Asked) -> None:
        """Find its model and its caller anew."""
        exchange = asked.exchange
        asked.principal = authenticate(self.callers(), exchange.headers.get(b"authorization", b""), time.time())
        if exchange.target is not None:
            demand(asked.principal, exchange.target.scopes)
        asked.model = as_it_is_now(self.view, asked)

    def send(self, asked: Asked, replica: Replica) -> None:
        """Send it to an engine."""
        if asked.principal.expires is not None:
            self.reconsider(asked)  # the key may have ended while it waited, and nobody tells of that
        self._returns.budget.requests += 1
        Relay(self.ledger, asked, self._returns).start(self._upstreams[replica])

    def answer(self, asked: Asked, error: ApiError) -> None:
        """Answer it with an error."""
        self.ledger.turned_away(asked, error.status, error.code or "", told=asked.exchange.status or error.status)
        self._answer(asked.exchange, error)

    def fail(self, asked: Asked) -> None:
        """A defect of ours has kept it from being sent."""
        self.failed(asked.exchange)

    def _cleared(self) -> None:
        self._returns.served()
        self._room.served()


def _soon(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(work)


def _is_open(target: Target, exchange: Exchange) -> bool:
    """Whether a page needs no key."""
    return not target.scopes or (target.page is Page.METRICS and is_loopback(exchange.peer))


def _keys_differ(old: GatewaySettings, new: GatewaySettings) -> bool:
    return (old.key_sha256, old.require_key) != (new.key_sha256, new.require_key)
