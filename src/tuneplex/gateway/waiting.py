"""The waiting room: who goes to a replica now, who waits, in which order, and for how long.

Whatever leaves the room passes `_out`, so that nothing of it stays behind, and whatever goes to a replica has passed
`policy.eligible` as fleet and keys are just then: when they change, all that wait pass it anew.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

from tuneplex.errors import ApiError, Unavailable
from tuneplex.gateway.asked import Asked, Charge, Group
from tuneplex.gateway.counters import Outcome
from tuneplex.gateway.estimate import longest_answer
from tuneplex.gateway.health import no_healthy_engine
from tuneplex.gateway.ledger import Ledger
from tuneplex.gateway.pace import Lengths
from tuneplex.gateway.places import Places
from tuneplex.gateway.prospects import Prospects
from tuneplex.gateway.relay import Relay
from tuneplex.gateway.urgency import SHARES
from tuneplex.policy import FairQueue
from tuneplex.types import Replica, Route, Waiting

__all__ = ["Desk", "Room", "stopping"]

_DISPATCHED_AT_ONCE = 16  # and no more, so that streams go on in between
_REVIEWED_AT_ONCE = 200
_EXPIRED_AT_ONCE = 100
_BYTES_PER_TOKEN = 4
_STATUS_LEFT = 499
_NOTICED_S = 0.0005
_ENDED_BY_CLIENT = frozenset({Outcome.CLIENT_GONE, Outcome.DEADLINE})


class Desk(Protocol):
    """Who knows the fleet, and can send and refuse."""

    def find(self, asked: Asked) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
        """The replicas that may take a request now; where there are none, those that will.

        Raises:
            ApiError: There are none, either.
        """

    def coming(self, asked: Asked) -> tuple[Replica, ...]:
        """The replicas that will be able to take a request, whether there are others or not."""

    def reconsider(self, asked: Asked) -> None:
        """Find its model and its caller anew, after fleet or keys have changed.

        Raises:
            ApiError: One of them is no more.
        """

    def send(self, asked: Asked, replica: Replica) -> None:
        """Send it there.

        Raises:
            ApiError: It is wrong; nothing was sent.
        """

    def answer(self, asked: Asked, error: ApiError) -> None:
        """Answer it with an error, in the way that is still open."""

    def fail(self, asked: Asked) -> None:
        """A defect of ours, just caught, has kept it from being sent: answer it."""


class Room:
    """The requests that wait in one gateway.

    Args:
        desk: Knows the fleet.
        ledger: Knows what is under way.
        places: Knows where there is room.
        soon: Calls something a little later, on the event loop.
        clock: Seconds that only go forward; the same as that of deadlines.
        wall: Unix time; `Replica.ready_at` is on it.
    """

    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        places: Places,
        *,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._desk = desk
        self._ledger = ledger
        self._places = places
        self._soon = soon
        self._clock = clock
        self._limits = Waiting()
        self._weights: Mapping[str, float] = {}
        self._queue: FairQueue[Asked] = FairQueue()
        self._waiters: dict[Asked, None] = {}
        self._lengths = Lengths()
        self._prospects = Prospects(self._queue, wall)
        self._groups: dict[tuple[str, ...], Group] = {}
        self._epoch = 0
        self._round = 0
        self._next: Replica | None = None  # where the one goes that fits
        self._awake = False
        self._stale = False
        self._closed = False
        self.bytes = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    # --- in

    def enter(self, asked: Asked, replicas: tuple[Replica, ...], coming: tuple[Replica, ...]) -> None:
        """Send a request if there is a place for it and nobody waits; else let it wait, or refuse it.

        Args:
            asked: What.
            replicas: As `Desk.find` says, just now.
            coming: The same.

        Raises:
            ApiError: It is wrong, or cannot wait; nothing of it is left here.
        """
        if not self._waiters and replicas:
            replica = self._places.choose(replicas, asked.model)
            if replica is not None:
                self._let_pass(asked, replica)
                return
        self._wait(asked, replicas, coming)

    def _let_pass(self, asked: Asked, replica: Replica) -> None:
        """Nobody waits and there is a place. The queue hears of it only where somebody may wait soon.

        What it would make of it otherwise is at most that whoever went last comes one turn later.
        """
        asked.charge = charge = self._charge(asked, counted=not self._places.is_quiet(replica))
        if charge.counted:
            self._queue.charge(
                tenant=charge.tenant, weight=charge.weight, flow=charge.flow, share=charge.share, work=charge.work
            )
        self._send(asked, replica)

    def _charge(self, asked: Asked, *, counted: bool = True, longest: float = math.inf) -> Charge:
        """What its turn costs: the tokens of its prompt, and those that are expected to come."""
        principal, priority = asked.principal, asked.priority
        name = asked.model.name
        to_come = 0.0 if asked.route is Route.EMBEDDINGS else min(self._lengths.expected(name), longest)
        return Charge(
            principal.tenant,
            principal.weight,
            (name, priority, asked.route, asked.large),  # what can go to other replicas must not wait behind
            SHARES[priority],
            max(1.0, self._prompt(asked) + to_come),
            counted,
        )

    @staticmethod
    def _prompt(asked: Asked) -> float:
        """Tokens of its prompt, counted or guessed."""
        return asked.exchange.received / _BYTES_PER_TOKEN if asked.needed is None else asked.needed.prompt

    def _wait(self, asked: Asked, replicas: tuple[Replica, ...], coming: tuple[Replica, ...]) -> None:
        if self._closed:
            raise stopping()
        broken_s = self._places.broken_s(replicas) if replicas else None
        if broken_s is not None and not self._desk.coming(asked):
            raise no_healthy_engine(asked.shown, broken_s)
        now, limits = self._clock(), self._limits
        if not self._waiters:
            self._prospects.speed.begins(now)
        longest = longest_answer(asked.route, asked.fields)
        asked.charge = charge = self._charge(asked, longest=math.inf if longest is None else longest)
        asked.since = now
        asked.until = min(asked.deadline, now + limits.longest_s)
        asked.comment_at = now + limits.comment_s if asked.stream else math.inf
        asked.group, asked.epoch = self._group(asked, replicas, coming), self._epoch
        asked.gone = self._left
        asked.exchange.listener = asked
        asked.place = self._queue.add(
            asked, tenant=charge.tenant, weight=charge.weight, flow=charge.flow, share=charge.share, work=charge.work
        )
        self._waiters[asked] = None
        self._places.waits(asked.group.model.version)
        self.bytes += asked.exchange.received
        if asked.why is not None:
            asked.why.waits(self._wanted(asked.group))
        place_free = self._places.has_any(replicas, asked.model)  # those that wait may all wait for something else
        if place_free and self._is_overfull:
            self._serve()
        self._make_room()
        if asked.place.waits:
            error = None if place_free else self._prospects.hopeless(asked, now)
            if error is not None:
                self._refuse(asked, error)
            elif self._places.any_free():
                self._wake()

    def _wanted(self, group: Group) -> str:
        """What requests of this group wait for, in words."""
        if not group.replicas:
            return "a replica that starts, or loads the model"
        if self._places.has_any(group.replicas, group.model):
            return "its turn"
        free = {replica.name for replica in self._places.free()}
        return "a slot for the adapter" if any(one.name in free for one in group.replicas) else "a free place"

    def _group(self, asked: Asked, replicas: tuple[Replica, ...], coming: tuple[Replica, ...]) -> Group:
        key = (asked.model.version, "" if replicas else "-", *(replica.name for replica in replicas or coming))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(asked.model, replicas, coming)
        return group

    def _make_room(self) -> None:
        """Refuse as many as are too many. Whoever has most waiting for its weight has to give way, nobody else."""
        while self._waiters and self._is_overfull:
            many = len(self._waiters) > self._limits.requests
            place = self._queue.newest_of_heaviest() if many else None
            victim = self._bulkiest() if place is None else place.item
            retry_s = self._prospects.retry_s(victim)
            # In words, too: a stream's head may have left already.
            words = f"Too many requests wait already. Try again in {retry_s} s."
            self._refuse(victim, Unavailable(words, code="overloaded", retry_after_s=retry_s))

    @property
    def _is_overfull(self) -> bool:
        return len(self._waiters) > self._limits.requests or self.bytes > self._limits.bytes

    def _bulkiest(self) -> Asked:
        """Of the tenant that has most bytes here for its weight, the newest of those with the lowest priority."""
        sizes: defaultdict[str, float] = defaultdict(float)
        for one in self._waiters:
            sizes[one.charge.tenant] += one.exchange.received / self._weights.get(one.charge.tenant, one.charge.weight)
        tenant = max(sizes, key=sizes.__getitem__)
        theirs = [one for one in reversed(self._waiters) if one.charge.tenant == tenant and one.exchange.received]
        return min(theirs, key=lambda one: one.charge.share)

    # --- out

    def _out(self, asked: Asked) -> None:
        """It waits no longer, whatever becomes of it."""
        self._queue.remove(asked.place)
        del self._waiters[asked]
        self._places.waits_no_more(asked.group.model.version)
        self.bytes -= asked.exchange.received
        asked.exchange.listener = None

    def _give_up(self, asked: Asked) -> None:
        """No engine will hear of it."""
        self._out(asked)
        waited_s = self._clock() - asked.since
        if waited_s >= _NOTICED_S:  # who is refused on arrival has not waited
            self._ledger.counters.waited(asked.model.name, waited_s)
        self._cancel(asked)
        if not self._waiters:  # else it is done when the queue is looked through
            self._places.settle()
        self._wake()

    @staticmethod
    def _cancel(asked: Asked) -> None:
        if asked.ticket is not None:
            asked.ticket.cancel()

    def _left(self, asked: Asked) -> None:
        """Its client has left."""
        self._give_up(asked)
        self._tell_waited(asked)
        self._ledger.counters.left(asked.model.name)
        self._ledger.turned_away(asked, _STATUS_LEFT, "")

    def _refuse(self, asked: Asked, error: ApiError) -> None:
        self._give_up(asked)
        self._ledger.counters.refused(asked.model.name, error.code or "other")
        self._tell_waited(asked)
        self._desk.answer(asked, error)

    def _tell_waited(self, asked: Asked) -> float:
        waited_s = max(0.0, self._clock() - asked.since)
        asked.waited_s = waited_s
        if waited_s >= _NOTICED_S:
            asked.exchange.extra += b"x-tuneplex-waited: %.3f\r\n" % waited_s
        if asked.why is not None:
            asked.why.waited(waited_s)
        return waited_s

    def _send(self, asked: Asked, replica: Replica) -> None:
        try:
            self._desk.send(asked, replica)
        except BaseException:
            if asked.charge.counted:
                self._correct(asked.charge, -asked.charge.work)
            raise

    def _correct(self, charge: Charge, by: float) -> None:
        self._queue.correct(tenant=charge.tenant, flow=charge.flow, by=by, weight=charge.weight, share=charge.share)

    # --- turns

    def _wake(self) -> None:
        """Something has changed: see soon who can go."""
        if not self._awake and self._waiters:
            self._awake = True
            self._soon(self._serve)

    def _serve(self) -> None:
        """Let go whoever can, in the order of turns."""
        self._awake = False
        if self._stale and not self._review():
            self._wake()
            return
        self._round += 1
        for _ in range(_DISPATCHED_AT_ONCE):
            asked = self._queue.take(self._fits) if self._places.any_free() else None
            if asked is None or self._next is None:
                break
            self._go(asked, self._next)
        else:
            self._wake()
        if self._places.settle():
            self._wake()

    def _fits(self, asked: Asked) -> bool:
        group = asked.group
        if group.blocked == self._round:
            return False
        self._next = self._places.choose(group.replicas, group.model)
        if self._next is not None:
            return True
        group.blocked = self._round  # whoever goes first can only take places away
        return False

    def _go(self, asked: Asked, replica: Replica) -> None:
        """Its turn has come. Its group is of this very state of fleet and keys: `_review` has seen to that."""
        self._out(asked)
        try:
            self._ledger.counters.waited(asked.model.name, self._tell_waited(asked))
            self._send(asked, replica)
        except ApiError as error:
            self._cancel(asked)
            self._ledger.counters.refused(asked.model.name, error.code or "other")
            self._desk.answer(asked, error)
        except Exception:  # noqa: BLE001 - the last resort: the others must have their turns
            self._cancel(asked)
            self._desk.fail(asked)

    # --- what changes

    def changed(self, limits: Waiting) -> None:
        """Fleet, keys or settings are other ones now."""
        self._limits = limits
        self._epoch += 1
        self._groups = {}
        self._stale = True
        self._make_room()
        self._wake()

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Tenants have these weights from now on, whatever their requests came with."""
        self._weights = weights
        self._queue.reweigh(weights)

    def served(self) -> None:
        """There may be places now that were not there before."""
        self._wake()

    def closed(self, relay: Relay, outcome: Outcome) -> None:
        """A request is over: its place is free, and what it has really taken is known."""
        self._wake()
        charge, used = relay.asked.charge, relay.used
        if used is None:
            return
        work = float(used.prompt + used.completion)
        if outcome in _ENDED_BY_CLIENT and not relay.asked.stream and not used.exact:
            # Nobody knows how much of a whole answer there was. It must not have been for nothing: whoever leaves
            # each time just before the end would keep the engines for itself.
            work = max(work, charge.work)
        if charge.counted and work != charge.work:
            self._correct(charge, work - charge.work)
        if outcome is Outcome.COMPLETE and used.exact:
            self._lengths.saw(relay.asked.model.name, used.completion)
        if self._waiters and work:
            self._prospects.speed.finished(work)

    def _review(self) -> bool:
        """Find anew what each waits for; whether that is done."""
        stale = [asked for asked in self._waiters if asked.epoch != self._epoch]
        for asked in stale[:_REVIEWED_AT_ONCE]:
            if not asked.place.waits:
                continue
            try:
                self._desk.reconsider(asked)
                group = self._group(asked, *self._desk.find(asked))
            except ApiError as error:
                self._refuse(asked, error)
            else:
                self._places.waits_no_more(asked.group.model.version)
                self._places.waits(group.model.version)
                asked.group, asked.epoch = group, self._epoch
        self._stale = len(stale) > _REVIEWED_AT_ONCE
        return not self._stale

    # --- time

    def tick(self, now: float) -> None:
        """Look after those that have waited long enough; called several times a second."""
        if not self._waiters:
            return
        if self._ledger.attempts:
            self._prospects.speed.passed(now)
        for asked in [asked for asked in self._waiters if asked.until <= now][:_EXPIRED_AT_ONCE]:
            if asked.place.waits:
                self._refuse(asked, self._prospects.expired(asked))
        if any(asked.comment_at <= now for asked in self._waiters):
            self._prospects.tell(now, self._limits.comment_s)
        self._wake()

    # --- the end, and what is told

    def close(self) -> None:
        """The gateway stops: nobody waits any more."""
        self._closed = True
        for asked in tuple(self._waiters):
            if asked.place.waits:
                self._refuse(asked, stopping())

    def demand(self, returning: Iterable[tuple[str, Sequence[Replica]]] = ()) -> dict[str, dict[str, float]]:
        """As `GatewayReport.demand` wants it.

        Args:
            returning: See `Returns.wanted`.
        """
        sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for attempt in self._ledger.attempts:
            sums[attempt.upstream.replica.name][attempt.asked.charge.tenant] += 1
        here = ((one.charge.tenant, one.group.replicas or one.group.coming) for one in self._waiters)
        for tenant, replicas in chain(here, returning):
            for replica in replicas:
                sums[replica.name][tenant] += 1 / len(replicas)
        return {name: dict(tenants) for name, tenants in sums.items()}


def stopping() -> Unavailable:
    """What those are told who would have to wait longer than this process will live."""
    return Unavailable("The gateway is stopping.", code="stopping", retry_after_s=1)
