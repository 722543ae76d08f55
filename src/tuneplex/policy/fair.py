"""Who is next: start-time fair queueing, over tenants by weight and over the flows of each tenant by share.

Every tenant has a virtual time, at which its next turn comes: each turn moves it on by the turn's work divided by the
tenant's weight, and the earliest is next. So under load tenants get work as their weights are, however large their
requests are and however many of them wait. Whoever begins to wait starts at the time that the queue has reached, and
is owed nothing for the time before. Inside a tenant its flows take turns in the same way, by their shares, so that
no flow can move what another tenant gets.

Not everything that waits wants the same. Where some tenants are served by other replicas than the rest, their times
run at other speeds, and whoever is ahead by them might wait for ever behind those that lag. So the first of a flow
goes before all others, wherever it fits, once so much work has gone since it became the first that its flow would
have been due twice. By that alone no flow gets more than half its share, so where all want the same it changes
little.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from heapq import heappop, heapreplace
from itertools import count
from typing import Generic, TypeVar

__all__ = ["FairQueue", "Place"]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound="_Member")

_REMEMBERED = 64
_LATE = 2  # times as much work as should have gone
_LOOKS = 4  # flows for each turn, to find those that are late


class Place(Generic[T]):
    """One that waits in a `FairQueue`, or did. To be read only.

    Attributes:
        item: What waits.
        tenant: Whose it is.
        flow: Of the tenant's flows the one that it is in.
        work: What it is charged when its turn comes.
        waits: It still waits: it was neither taken nor removed.
    """

    __slots__ = ("_flow", "_mark", "_number", "_tenant", "item", "waits", "work")

    def __init__(self, item: T, work: float, number: int, of: tuple[_Tenant[T], _Flow[T]]) -> None:
        self.item = item
        self.work = work
        self.waits = True
        self._number = number
        self._tenant, self._flow = of
        self._mark = self._flow.come
        self._flow.come += work

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._tenant.name

    @property
    def flow(self) -> Hashable:
        """Of the tenant's flows the one that it is in."""
        return self._flow.key


class FairQueue(Generic[T]):
    """Who is next: start-time fair queueing over tenants by weight, and over the flows of each tenant.

    Weights, shares and work are more than 0. Work is in any unit, always the same. No call takes longer for what went
    before: who has nothing waiting and is not ahead of the others is forgotten.

    Attributes:
        work: Of all that wait.
    """

    def __init__(self) -> None:
        self._tenants: _Ring[str, _Tenant[T]] = _Ring()
        self._weights: Mapping[str, float] = {}
        self._numbers = count()
        self.work = 0.0
        self._waiting = 0
        self._gone = 0.0
        self._look = math.inf
        self._rest = 0
        self._late: dict[Place[T], None] = {}

    def __len__(self) -> int:
        """How many wait."""
        return self._waiting

    def waiting(self) -> Mapping[str, int]:
        """How many wait of each tenant that has any waiting."""
        return {tenant.name: tenant.waiting for tenant in self._tenants}

    def add(self, item: T, *, tenant: str, weight: float, flow: Hashable, share: float, work: float) -> Place[T]:
        """Let something wait, behind all others of its flow."""
        whose = self._tenant(tenant, weight)
        within = whose.flow(flow, share)
        place = Place(item, work, next(self._numbers), (whose, within))
        if not within.places:
            self._lead(within, work)
        within.places[place] = None
        within.work += work
        whose.work += work
        self.work += work
        whose.waiting += 1
        self._waiting += 1
        whose.flows.wait(within)
        self._tenants.wait(whose)
        return place

    def remove(self, place: Place[T]) -> None:
        """Let it wait no longer, without a turn; nothing is charged. One that does not wait any more is left alone."""
        if not place.waits:
            return
        place.waits = False
        self._late.pop(place, None)
        whose, within = place._tenant, place._flow  # noqa: SLF001 - a place is this queue's own
        first = place is within.first
        del within.places[place]
        if first and within.places:
            self._lead(within, within.first.work)
        whose.waiting -= 1
        self._waiting -= 1
        # Sums of floats would never come back to 0 by themselves.
        within.work = within.work - place.work if within.places else 0.0
        whose.work = whose.work - place.work if whose.waiting else 0.0
        self.work = self.work - place.work if self._waiting else 0.0
        if not within.places:
            within.come = 0.0
            whose.flows.leave(within)
        if not whose.waiting:
            self._tenants.leave(whose)

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """The next that fits, of those that are first in their flows; it waits no longer, and its work is charged.

        Args:
            fits: Asked in the order of turns until it says yes, about each flow's first at most once. It must leave
                the queue alone.

        Returns:
            None if nothing fits.
        """
        self._rest -= 1
        if self._rest < 0 and self._gone >= self._look:
            self._find_late()
        place = self._first_that(fits)
        if place is None:
            return None
        self._tenants.turn(place._tenant, place.work)  # noqa: SLF001 - a place is this queue's own
        place._tenant.flows.turn(place._flow, place.work)  # noqa: SLF001
        self._gone += place.work
        place._flow.last = place.work  # noqa: SLF001
        self.remove(place)
        return place.item

    def _first_that(self, fits: Callable[[T], bool]) -> Place[T] | None:
        late = self._late
        for place in late:
            if fits(place.item):
                return place
        for whose in self._tenants:
            for within in whose.flows:
                place = within.first
                if place not in late and fits(place.item):
                    return place
        return None

    def charge(self, *, tenant: str, weight: float, flow: Hashable, share: float, work: float) -> None:
        """Something went without waiting."""
        whose = self._tenant(tenant, weight)
        within = whose.flow(flow, share)
        self._tenants.went(whose, work)
        whose.flows.went(within, work)
        self._gone += work
        within.last = work

    def correct(self, *, tenant: str, flow: Hashable, by: float, weight: float = 1.0, share: float = 1.0) -> None:
        """What was charged has turned out to be `by` more work (less, if negative): later turns come later (earlier).

        Nobody is owed more than it was charged since it began to wait.

        Args:
            tenant: Whose it was.
            flow: Its flow.
            by: The real work without what was charged.
            weight: Of the tenant; only needed where it may have been forgotten.
            share: Of the flow; likewise.
        """
        self._gone += by
        if by > 0:
            whose = self._tenant(tenant, weight, known=True)
            self._tenants.spend(whose, by)
            corrected = whose.flow(flow, share, known=True)
            whose.flows.spend(corrected, by)
            corrected.last += by  # or a flow that is charged too little at first would soon be late each time
            return
        found = self._tenants.members.get(tenant)
        if found is None:
            return
        self._tenants.give_back(found, -by)
        within = found.flows.members.get(flow)
        if within is not None:
            found.flows.give_back(within, -by)
            within.last = max(0.0, within.last + by)

    def order(self) -> Iterator[Place[T]]:
        """In which order all would go, if everything fitted from now on. To be read to its end before any change."""
        numbers = count()
        tenants = [(tenant.start, next(numbers), tenant, list(tenant.within(numbers))) for tenant in self._tenants]
        while tenants:
            start, _, tenant, flows = tenants[0]
            begins, _, flow, places = flows[0]
            place = next(places)
            yield place
            if place is flow.newest():
                heappop(flows)
            else:
                heapreplace(flows, (begins + place.work / flow.weight, next(numbers), flow, places))
            if flows:
                heapreplace(tenants, (start + place.work / tenant.weight, next(numbers), tenant, flows))
            else:
                heappop(tenants)

    def newest_of_heaviest(self) -> Place[T] | None:
        """Who should go when too many wait: of the tenant that has most of them for its weight, the newest.

        Of tenants with equally many the one with most work. Work alone must not decide: with many small requests one
        tenant could keep out all large ones. Of the tenant's flows those with the smallest share are looked at. None if
        nothing waits.
        """
        heaviest = max(
            self._tenants,
            key=lambda tenant: (tenant.waiting / tenant.weight, tenant.work / tenant.weight),
            default=None,
        )
        if heaviest is None:
            return None
        smallest = min(flow.weight for flow in heaviest.flows)
        newest = (flow.newest() for flow in heaviest.flows if flow.weight == smallest)
        return max(newest, key=lambda place: place._number)  # noqa: SLF001 - a place is this queue's own

    def work_ahead(self, place: Place[T]) -> float:
        """About how much work goes before it, from what waits now, as if it could be cut as finely as one likes."""
        if not place.waits:
            return 0.0
        whose, within = place._tenant, place._flow  # noqa: SLF001 - a place is this queue's own
        ahead = within.before(place._mark)  # noqa: SLF001
        ahead += whose.flows.before(within, ahead)
        return ahead + self._tenants.before(whose, ahead)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """From now on these are the tenants' weights, whatever `add` and `charge` say; others have what those say.

        Who is ahead of its turn, or behind, is so by as much work as before.
        """
        self._weights = dict(weights)
        for tenant in self._tenants.members.values():
            self._tenants.reweigh(tenant, self._weights.get(tenant.name, tenant.own_weight))

    def _lead(self, within: _Flow[T], work: float) -> None:
        """A flow has a new first, with so much work."""
        within.since = self._gone
        self._look = min(self._look, self._gone + _LATE * (within.last + work))  # not late before that

    def _find_late(self) -> None:
        """Note the first ones of flows that have waited for much longer than their turns take, the latest one first.

        To look at all of them takes long, so it is done seldom enough to cost each turn little.
        """
        found: list[tuple[float, int, Place[T]]] = []
        soonest, flows = math.inf, 0
        weights = math.fsum(tenant.weight for tenant in self._tenants)
        for tenant in self._tenants:
            shares = math.fsum(flow.weight for flow in tenant.flows) * weights / tenant.weight
            for flow in tenant.flows:
                due = flow.since + _LATE * (flow.last + flow.first.work) * shares / flow.weight
                if due <= self._gone:
                    found.append((due, flow.first._number, flow.first))  # noqa: SLF001 - this queue's own
                else:
                    soonest = min(soonest, due)
                flows += 1
        self._late = {place: None for _, _, place in sorted(found)}
        self._look, self._rest = soonest, flows // _LOOKS

    def _tenant(self, name: str, weight: float, *, known: bool = False) -> _Tenant[T]:
        """The one of this name, at its weight; with `known` what is known of its weight stays."""
        found = self._tenants.members.get(name)
        if found is None:
            found = self._tenants.join(name, _Tenant(name))
        elif known:
            return found
        found.own_weight = weight
        found.weight = self._weights.get(name, weight)
        return found


class _Member:
    """Takes turns with others.

    Attributes:
        weight: For how much of the whole it stands.
        start: When its next turn comes, in the ring's virtual time.
        floor: What was given back does not bring `start` below this.
        work: Of all of it that waits.
        entry: Where it stands in the ring; None while nothing of it waits.
    """

    __slots__ = ("entry", "floor", "start", "weight", "work")

    def __init__(self) -> None:
        self.weight = 1.0
        self.start = 0.0
        self.floor = 0.0
        self.work = 0.0
        self.entry: tuple[float, int] | None = None


class _Flow(_Member, Generic[T]):
    """What one tenant has waiting of one kind, first come, first served."""

    __slots__ = ("come", "key", "last", "places", "since")

    def __init__(self, key: Hashable) -> None:
        super().__init__()
        self.key = key
        self.places: OrderedDict[Place[T], None] = OrderedDict()
        self.come = 0.0
        self.last = 0.0
        self.since = 0.0

    @property
    def first(self) -> Place[T]:
        """The next one."""
        return next(iter(self.places))

    def newest(self) -> Place[T]:
        """The last one in."""
        return next(reversed(self.places))

    def before(self, mark: float) -> float:
        """Of its work that waits, what came before `mark`. What left from the middle counts for all alike."""
        first = self.first._mark  # noqa: SLF001 - a place is this queue's own
        come = self.come - first
        return self.work * (mark - first) / come if come else 0.0


class _Tenant(_Member, Generic[T]):
    """One tenant, and its flows.

    Attributes:
        own_weight: What its weight is where nobody has said another one.
        waiting: How many of its places wait.
    """

    __slots__ = ("flows", "name", "own_weight", "waiting")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.own_weight = 1.0
        self.waiting = 0
        self.flows: _Ring[Hashable, _Flow[T]] = _Ring()

    def flow(self, key: Hashable, share: float, *, known: bool = False) -> _Flow[T]:
        """The one of this key, at this share; with `known` what is known of its share stays."""
        found = self.flows.members.get(key)
        if found is None:
            found = self.flows.join(key, _Flow(key))
        elif known:
            return found
        found.weight = share
        return found

    def within(self, numbers: Iterator[int]) -> Iterator[tuple[float, int, _Flow[T], Iterator[Place[T]]]]:
        """Its flows in their order: when the turn comes, one of `numbers`, the flow, and its places."""
        for flow in self.flows:
            yield flow.start, next(numbers), flow, iter(flow.places)


class _Ring(Generic[K, M]):
    """Those who take turns, in the order of their turns.

    Attributes:
        members: All that are remembered, by key.
        time: The virtual time: when the latest turn was.
    """

    __slots__ = ("_limit", "_numbers", "_order", "members", "time")

    def __init__(self) -> None:
        self.members: dict[K, M] = {}
        self.time = 0.0
        self._order: list[tuple[float, int, M]] = []
        self._numbers = count()
        self._limit = _REMEMBERED

    def __iter__(self) -> Iterator[M]:
        """Those that wait, the next one first."""
        return (member for _, _, member in self._order)

    def join(self, key: K, member: M) -> M:
        """Remember a new one."""
        if len(self.members) >= self._limit:
            self._forget()
        member.start = member.floor = self.time
        self.members[key] = member
        return member

    def wait(self, member: M) -> None:
        """Something of it waits: it has its place in the order now, if it did not have one before."""
        if member.entry is None:
            self._rise(member)
            self._enter(member)

    def leave(self, member: M) -> None:
        """Nothing of it waits any more."""
        if member.entry is not None:
            del self._order[bisect_left(self._order, member.entry)]
            member.entry = None

    def turn(self, member: M, work: float) -> None:
        """It has its turn."""
        self.time = max(self.time, member.start)
        self.spend(member, work)

    def went(self, member: M, work: float) -> None:
        """It went without waiting. Where nobody waits, time moves on with those that go."""
        if self._order:
            self.spend(member, work)
        else:
            self._rise(member)
            self.turn(member, work)

    def spend(self, member: M, work: float) -> None:
        """Its turns come later, by so much work."""
        if member.entry is None:
            self._rise(member)
        self._move(member, member.start + work / member.weight)

    def give_back(self, member: M, work: float) -> None:
        """Its turns come earlier, by so much work, as far as it was charged since it began to wait."""
        self._move(member, max(member.floor, member.start - work / member.weight))

    def reweigh(self, member: M, weight: float) -> None:
        """It stands for another part of the whole."""
        ratio, member.weight = member.weight / weight, weight
        if ratio != 1:
            member.floor = self.time + (member.floor - self.time) * ratio
            self._move(member, self.time + (member.start - self.time) * ratio)

    def before(self, member: M, ahead: float) -> float:
        """How much work of the others goes before the member's own, after `ahead` of its own."""
        until = member.start + ahead / member.weight
        others = (other for other in self if other is not member)
        return math.fsum(min(other.work, max(0.0, until - other.start) * other.weight) for other in others)

    def _rise(self, member: M) -> None:
        """It is owed nothing for the time when it had nothing waiting."""
        if member.start < self.time:
            member.start = member.floor = self.time

    def _move(self, member: M, start: float) -> None:
        if member.entry is None:
            member.start = start
        elif len(self._order) == 1:  # so is everybody's order where there is nobody else
            member.start = start
            member.entry = start, next(self._numbers)
            self._order[0] = *member.entry, member
        else:
            self.leave(member)
            member.start = start
            self._enter(member)

    def _enter(self, member: M) -> None:
        # The number makes equals take turns in the order in which they came to stand there.
        member.entry = member.start, next(self._numbers)
        insort(self._order, (*member.entry, member))

    def _forget(self) -> None:
        """Leave out those that would begin anew anyway: all, where nobody waits. It is rare, and so cheap."""
        if not self._order:
            self.time = max((member.start for member in self.members.values()), default=self.time)
        self.members = {
            key: member for key, member in self.members.items() if member.entry is not None or member.start > self.time
        }
        self._limit = max(_REMEMBERED, 2 * len(self.members))
