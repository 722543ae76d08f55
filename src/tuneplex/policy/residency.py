"""Which adapters should have a slot for good or come into host memory, and where an engine that does not tell has them.

Nothing here decides who uses a slot: that is the gateways' (`slots`). It is about what engines keep between requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from tuneplex.types import Tier

__all__ = ["Demand", "demanded", "grown", "last_used", "modelled", "pins", "prefetched"]

_HALF_LIFE_S = 60.0
_ENOUGH = 20.0
_HOT = 0.3
_COLD = 0.15


class Demand(msgspec.Struct, frozen=True):
    """How much each adapter of a replica was asked for lately: a count that halves each minute.

    Attributes:
        counts: By the adapter's name.
        at: When, seconds.
    """

    counts: dict[str, float] = {}
    at: float = 0.0

    def share(self, name: str) -> float:
        """Its part of all, from 0 to 1."""
        return self.counts.get(name, 0.0) / (sum(self.counts.values()) or 1.0)

    @property
    def is_enough(self) -> bool:
        """Whether anything can be said."""
        return sum(self.counts.values()) >= _ENOUGH


def demanded(before: Demand, begun: Mapping[str, int], now: float) -> Demand:
    """With the requests that have begun since."""
    kept = 0.5 ** (max(0.0, now - before.at) / _HALF_LIFE_S)
    counts = {name: count * kept for name, count in before.counts.items() if count * kept > 1 / _ENOUGH}
    for name, count in begun.items():
        counts[name] = counts.get(name, 0.0) + count
    return Demand(counts, now)


def grown(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What was counted meanwhile, in the order of `now`; a counter that is lower than before began anew."""
    found = {name: count - (before.get(name, 0) if count >= before.get(name, 0) else 0) for name, count in now.items()}
    return {name: count for name, count in found.items() if count}


def last_used(before: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """An order by last use, the latest last, after these were used."""
    used = dict.fromkeys(reversed((*before, *names)))
    return tuple(reversed(used))


def modelled(order: Sequence[str], slots: int, host: int) -> dict[str, Tier]:
    """Where vLLM should have adapters that were last used in this order, the latest last.

    It evicts the least recently used, from slots and from host memory alike, and what is in a slot is in both.

    Args:
        order: All that are loaded; loading is a use.
        slots: Its `--max-loras`.
        host: Its `--max-cpu-loras`.
    """
    near = [*reversed(order)]
    return {
        name: Tier.DEVICE if place < slots else Tier.HOST if place < host else Tier.DISK
        for place, name in enumerate(near)
    }


def pins(
    always: Sequence[str],
    demand: Demand,
    pinned: Collection[str],
    loaded: Collection[str],
    slots: int,
    *,
    found: Collection[str] = (),
) -> set[str]:
    """Which adapters of a replica should keep a slot.

    Those that somebody wants to, and those that are hot: up to half of the slots, and only where there are more
    adapters than slots. One is hot from three tenths of a slot's even share of all requests on, and until it has half
    of that, so that it does not come and go. One slot at least stays for all others: a batch must always find one.

    Args:
        always: Those that should whatever happens, the most important one first.
        demand: For each of them lately.
        pinned: Those that are pinned now.
        loaded: All that the replica has.
        slots: How many it has.
        found: Those of them that were pinned before anybody here knew a demand: they stay so until there is enough.
    """
    most = max(0, slots - 1)
    chosen = [name for name in always if name in loaded][:most]
    if len(loaded) <= slots:
        return set(chosen)
    room = min(most, max(len(chosen), slots // 2)) - len(chosen)
    others = sorted((name for name in loaded if name not in chosen), key=demand.share, reverse=True)
    if not demand.is_enough:
        return {*chosen, *[name for name in others if name in pinned and name in found][:room]}
    hot = [name for name in others if demand.share(name) >= (_COLD if name in pinned else _HOT) / slots]
    # Of two that are about as hot the one that has a slot keeps it.
    hot.sort(key=lambda name: demand.share(name) * (_HOT / _COLD if name in pinned else 1.0), reverse=True)
    return {*chosen, *hot[:room]}


def prefetched(waiting: Iterable[str], tiers: Mapping[str, Tier | None], room: int) -> list[str]:
    """Which adapters should be read into host memory because requests wait for them, who waits longest first.

    Args:
        waiting: Those that requests wait for, who has waited longest first.
        tiers: Where the replica has what it has.
        room: Adapters that host memory holds besides those in slots. No more of those that wait are looked at, or
            they would push each other out.
    """
    first = [name for name in waiting if tiers.get(name) in {Tier.HOST, Tier.DISK}][: max(0, room)]
    return [name for name in first if tiers[name] is Tier.DISK]
