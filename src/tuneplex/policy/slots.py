"""Which adapter may have one of a replica's slots, when more want one than there are.

How a gateway uses it:

- `update` with every view, `hear` with every `Turns`.
- `fits` in the question that `FairQueue.take` asks, for each replica that is eligible and has a free place. It
  remembers who failed for want of a slot alone: that one's turn had come.
- `began` when a request goes to a replica, waited or not, and `ended` when it is over.
- `settle` after the queue was looked through, and when a request has left it. It may close an adapter so that one
  that waits gets its slot, and tells when the queue should be looked through again.

An adapter has a slot for as long as a request with it is under way. One that never pauses would keep its slot for
ever, so it is closed: nothing begins with it, until its requests are over and the one that waits has its slot.
Pinned adapters have theirs for good: they are never closed, and the others share what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from tuneplex.types import Replica

__all__ = ["QUANTUM_S", "Slots"]

QUANTUM_S = 1.0


class Slots:
    """The slots of all replicas, as one gateway sees them. The base needs none. Times are seconds of any one clock.

    Args:
        quantum_s: How long an adapter has a slot at least, before it is closed for another.

    Attributes:
        busy: Replica -> version -> requests of this gateway that are under way there, the base's among them.
    """

    def __init__(self, quantum_s: float = QUANTUM_S) -> None:
        self.busy: dict[str, dict[str, int]] = {}
        self._quantum_s = quantum_s
        self._base = ""
        self._limits: dict[str, int | None] = {}
        self._pinned: dict[str, frozenset[str]] = {}
        self._tenures: dict[str, dict[str, _Tenure]] = {}
        self._closings: dict[str, _Closing] = {}
        self._others: dict[str, frozenset[str]] = {}
        self._lacking: dict[str, dict[str, None]] = {}
        self._opened = False

    @property
    def closing(self) -> dict[str, tuple[str, ...]]:
        """Replica -> versions with which nothing begins there, because another one of this gateway waits."""
        found: dict[str, list[str]] = {}
        for closing in self._closings.values():
            found.setdefault(closing.replica, []).append(closing.version)
        return {replica: tuple(sorted(versions)) for replica, versions in found.items()}

    def update(self, replicas: Iterable[Replica], base: str) -> None:
        """Follow a new view; what is under way on a replica that is gone is still counted until it ended.

        Args:
            replicas: All there are.
            base: The base's version.
        """
        self._base = base
        replicas = tuple(replicas)
        self._limits = {replica.name: _shared(replica) for replica in replicas}
        self._pinned = {replica.name: replica.pinned for replica in replicas if replica.pinned}
        void = [wanted for wanted, closing in self._closings.items() if self._is_void(closing)]
        for wanted in void:
            del self._closings[wanted]
        self._opened = self._opened or bool(void)

    def hear(
        self, elsewhere: Mapping[str, Mapping[str, int]], closing: Mapping[str, Collection[str]], now: float
    ) -> None:
        """What the other gateways have under way, by replica and version, and what is closed by anybody."""
        for replica, tenures in self._tenures.items():
            for version, tenure in tenures.items():
                tenure.elsewhere = elsewhere.get(replica, {}).get(version, 0)
        for replica, counts in elsewhere.items():
            for version, count in counts.items():
                if count and version != self._base:
                    self._tenure(replica, version, now).elsewhere = count
        for replica, tenures in list(self._tenures.items()):
            for version in [version for version, tenure in tenures.items() if not tenure.count]:
                self._drop(replica, version)
        mine = self.closing
        self._others = {
            replica: frozenset(versions) - frozenset(mine.get(replica, ())) for replica, versions in closing.items()
        }

    def fits(self, replica: Replica, version: str) -> bool:
        """Whether a request whose turn it is may begin there, as far as slots are concerned."""
        if self.has_slot(replica, version):
            return True
        if not self._is_closed(replica.name, version):
            self._lacking.setdefault(version, {})[replica.name] = None
        return False

    def has_slot(self, replica: Replica, version: str) -> bool:
        """The same, whoever's turn it is: nothing is remembered."""
        slots = _shared(replica)
        if slots is None or version == self._base or version in replica.pinned:
            return True
        name = replica.name
        if self._is_closed(name, version):
            return False
        return version in self._tenures.get(name, ()) or self._free(name, version, slots) > 0

    def began(self, replica: str, version: str, *, tenant: str, weight: float, work: float, now: float) -> None:
        """A request has begun there.

        Args:
            replica: The replica's name.
            version: With which it answers.
            tenant: Whose request it is.
            weight: Of the tenant.
            work: As the queue was charged.
            now: The time.
        """
        counts = self.busy.setdefault(replica, {})
        counts[version] = counts.get(version, 0) + 1
        if version == self._base:
            return
        tenure = self._tenure(replica, version, now)
        tenure.here += 1
        tenure.work += work
        tenure.weights[tenant] = weight
        if self._lacking:
            self._lacking.pop(version, None)
        if self._closings and self._closings.pop(version, None) is not None:
            self._opened = True

    def ended(self, replica: str, version: str) -> None:
        """A request that began there is over."""
        counts = self.busy[replica]
        counts[version] -= 1
        if not counts[version]:
            del counts[version]
            if not counts:
                del self.busy[replica]
        tenure = self._tenures.get(replica, {}).get(version)
        if tenure is not None:
            tenure.here -= 1
            if not tenure.count:
                self._drop(replica, version)

    def settle(self, waiting: Container[str], now: float) -> float | None:
        """Close what has to be closed, and open again what was closed for one that waits no longer.

        Args:
            waiting: The versions that any request waits for.
            now: The time.

        Returns:
            When to look through the queue again, and settle: `now` if something was opened, later if an adapter may
            keep its slot until then. None: nothing will change by itself.
        """
        if not self._lacking and not self._closings and not self._opened:
            return None
        left = [version for version in self._closings if version not in waiting]
        for version in left:
            del self._closings[version]
        opened, self._opened = bool(left) or self._opened, False
        self._lacking = {version: names for version, names in self._lacking.items() if version in waiting}
        later = [
            at for version, names in self._lacking.items() if (at := self._close_for(version, names, now)) is not None
        ]
        return now if opened else min(later, default=None)

    def _close_for(self, wanted: str, replicas: Iterable[str], now: float) -> float | None:
        """Close one adapter on one of the replicas for one that waits; or when that may be done, if not now."""
        known = self._closings.get(wanted)
        if known is not None and not self._is_spent(wanted, known):
            return None
        self._closings.pop(wanted, None)
        found = [(name, slots) for name in replicas if (slots := self._slots(name)) is not None]
        if any(self._free(name, wanted, slots) > 0 for name, slots in found):
            return None
        tenures = [one for name, _ in found for one in self._open(name)]
        due = [one for one in tenures if one[2].since + self._quantum_s <= now]
        if due:
            replica, version, _ = max(due, key=lambda one: one[2].served)
            self._closings[wanted] = _Closing(replica, version)
            return None
        return min((tenure.since + self._quantum_s for _, _, tenure in tenures), default=None)

    def _is_spent(self, wanted: str, closing: _Closing) -> bool:
        """Whether what was closed has left its slot, and yet there is none: somebody who knew nothing of it took it."""
        slots = self._slots(closing.replica)
        left = closing.version not in self._tenures.get(closing.replica, ())
        return slots is not None and left and self._free(closing.replica, wanted, slots) <= 0

    def _is_void(self, closing: _Closing) -> bool:
        """Whether nobody is to get a slot that way: nobody knows of slots there any more, or it was pinned since."""
        return self._slots(closing.replica) is None or closing.version in self._pinned.get(closing.replica, ())

    def _slots(self, replica: str) -> int | None:
        return self._limits.get(replica)

    def _open(self, replica: str) -> Iterator[tuple[str, str, _Tenure]]:
        """Who has a slot there that others can have, and is not closed."""
        for version, tenure in self._tenures.get(replica, {}).items():
            if version not in self._pinned.get(replica, ()) and not self._is_closed(replica, version):
                yield replica, version, tenure

    def _is_closed(self, replica: str, version: str) -> bool:
        if self._others and version in self._others.get(replica, ()):
            return True
        return bool(self._closings) and _Closing(replica, version) in self._closings.values()

    def _free(self, replica: str, version: str, slots: int) -> int:
        """Slots that nobody has, and that were not freed for another one; those of pinned ones are not among them."""
        taken: Collection[str] = self._tenures.get(replica, {})
        if replica in self._pinned:
            taken = [one for one in taken if one not in self._pinned[replica]]
        if not self._closings and not self._others:  # mostly
            return slots - len(taken)
        promised = sum(
            1
            for wanted, closing in self._closings.items()
            if closing.replica == replica and wanted != version and closing.version not in taken
        )
        promised += sum(1 for closed in self._others.get(replica, ()) if closed not in taken)
        return slots - len(taken) - promised

    def _tenure(self, replica: str, version: str, now: float) -> _Tenure:
        tenures = self._tenures.setdefault(replica, {})
        if version not in tenures:
            tenures[version] = _Tenure(now)
        return tenures[version]

    def _drop(self, replica: str, version: str) -> None:
        tenures = self._tenures[replica]
        del tenures[version]
        if not tenures:
            del self._tenures[replica]


def _shared(replica: Replica) -> int | None:
    """The slots of a replica that adapters share; None where nobody knows."""
    return None if replica.slots is None else max(1, replica.slots - len(replica.pinned))


class _Closing(NamedTuple):
    """Where nothing more begins, and with which version."""

    replica: str
    version: str


class _Tenure:
    """An adapter that has a slot.

    Attributes:
        since: Since when.
        here: Requests under way from this gateway.
        elsewhere: And from all others, as far as is known.
        work: What began with it since, here.
        weights: Of the tenants that it began for.
    """

    __slots__ = ("elsewhere", "here", "since", "weights", "work")

    def __init__(self, since: float) -> None:
        self.since = since
        self.here = 0
        self.elsewhere = 0
        self.work = 0.0
        self.weights: dict[str, float] = {}

    @property
    def count(self) -> int:
        """Requests that hold it."""
        return self.here + self.elsewhere

    @property
    def served(self) -> float:
        """The work for each weight that it is for; what only others use has had nothing that we know of."""
        return self.work / sum(self.weights.values()) if self.weights else 0.0
