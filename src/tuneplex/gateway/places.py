"""Where there is room for a request now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from tuneplex.gateway.attempt import Attempt
from tuneplex.gateway.health import Health
from tuneplex.gateway.ledger import Ledger
from tuneplex.policy import Slots, least_outstanding
from tuneplex.types import FleetView, Model, Replica, Turns

__all__ = ["Places"]


class Places:
    """The places and the adapter slots of all replicas, as far as they are this gateway's.

    Args:
        index: Which of the fleet's gateways this is.
        ledger: Knows what is under way.
        doubts: The names of replicas that may be gone.
        health: Knows which replicas fail.
        clock: Seconds that only go forward.

    Attributes:
        slots: Who has which.
        begun: Replica -> version -> requests that went there, what went there last is last; of what it serves only.
    """

    def __init__(
        self, index: int, ledger: Ledger, doubts: Container[str], health: Health, clock: Callable[[], float]
    ) -> None:
        self.slots = Slots()
        self.begun: dict[str, dict[str, int]] = {}
        self._index = index
        self._outstanding = ledger.outstanding
        self._doubts = doubts
        self._health = health
        self._clock = clock
        self._view = FleetView()
        self._turns = Turns()
        self._most: dict[str, int] = {}
        self._waiting: Counter[str] = Counter()  # by version

    def update(self, view: FleetView) -> None:
        """Go by this view from now on."""
        self._view = view
        base = next((model.version for model in view.models.values() if model.parent is None), "")
        self.slots.update(view.replicas, base)
        self.begun = {replica.name: _served(self.begun.get(replica.name, {}), replica) for replica in view.replicas}
        self._count()

    def update_turns(self, turns: Turns) -> None:
        """Go by these shares from now on."""
        self._turns = turns
        self.slots.hear(turns.elsewhere.get(self._index, {}), turns.closing, self._clock())
        self._count()

    def forget_others(self) -> None:
        """Look at our own slots only: what others had, or had closed, might keep an adapter waiting for ever."""
        self._turns = msgspec.structs.replace(self._turns, elsewhere={}, closing={})
        self.slots.hear({}, {}, self._clock())

    def _count(self) -> None:
        shares = self._turns.places.get(self._index, {})
        self._most = {
            replica.name: self._part(replica.name, replica.concurrent, shares)
            for replica in self._view.replicas
            if replica.concurrent is not None
        }

    def _part(self, name: str, concurrent: int, shares: Mapping[str, int]) -> int:
        if self._view.gateways <= 1:
            return concurrent
        return shares.get(name, max(1, concurrent // self._view.gateways))

    def choose(self, replicas: Sequence[Replica], model: Model) -> Replica | None:
        """The best of these that have a free place, and a slot, for this model; None if none has."""
        version = model.version
        best = least_outstanding(replicas, self._outstanding).replica  # mostly it has
        if best is None or (self._is_free(best) and self.slots.fits(best, version)):
            return best
        free = [replica for replica in replicas if self._is_free(replica) and self.slots.fits(replica, version)]
        return least_outstanding(free, self._outstanding).replica

    def has_any(self, replicas: Sequence[Replica], model: Model) -> bool:
        """Whether any of these has a free place, and a slot, for this model, whoever's turn it is."""
        return any(self._is_free(one) and self.slots.has_slot(one, model.version) for one in replicas)

    def broken_s(self, replicas: Sequence[Replica]) -> float | None:
        """Seconds until the first of these is tried again, where all of them fail; None where one does not.

        Of one that may be gone nobody knows yet: if it is, another one is coming.
        """
        if any(replica.name in self._doubts for replica in replicas):
            return None
        return self._health.broken_s([replica.name for replica in replicas])

    def free(self) -> list[Replica]:
        """The replicas that have a free place, with or without a slot."""
        return list(filter(self._is_free, self._view.replicas))

    def any_free(self) -> bool:
        """Whether any replica at all has a free place, with or without a slot."""
        return any(map(self._is_free, self._view.replicas))

    def is_quiet(self, replica: Replica) -> bool:
        """Whether it has so many free places that nobody is about to wait for one."""
        most = self._most.get(replica.name)
        return most is None or 2 * self._outstanding.get(replica.name, 0) < most

    def _is_free(self, replica: Replica) -> bool:
        name = replica.name
        most = self._most.get(name)
        free = most is None or self._outstanding.get(name, 0) < most
        return free and name not in self._doubts and self._health.admits(name)

    # --- who waits

    def waits(self, version: str) -> None:
        """One more request waits for a place, and a slot, for this version of a model."""
        self._waiting[version] += 1

    @property
    def wanted(self) -> dict[str, int]:
        """How many wait for each version; who has waited longest is first."""
        return dict(self._waiting)

    def waits_no_more(self, version: str) -> None:
        """One of them does not."""
        self._waiting[version] -= 1
        if not self._waiting[version]:
            del self._waiting[version]

    def settle(self) -> bool:
        """After all that wait were looked at: free slots for those that lack one; whether to look at all again now."""
        now = self._clock()
        again = self.slots.settle(self._waiting, now)
        return again is not None and again <= now  # for a later time, `tick` is often enough

    # --- who goes

    def began(self, attempt: Attempt) -> None:
        """A request is about to be sent."""
        asked = attempt.asked
        charge, version = asked.charge, asked.model.version
        counts = self.begun.setdefault(attempt.upstream.replica.name, {})
        counts[version] = counts.pop(version, 0) + 1
        self.slots.began(
            attempt.upstream.replica.name,
            version,
            tenant=charge.tenant,
            weight=charge.weight,
            work=charge.work,
            now=self._clock(),
        )

    def ended(self, attempt: Attempt) -> None:
        """The replica has nothing more to do with it."""
        self.slots.ended(attempt.upstream.replica.name, attempt.asked.model.version)


def _served(begun: Mapping[str, int], replica: Replica) -> dict[str, int]:
    return {version: count for version, count in begun.items() if version in replica.serves}
