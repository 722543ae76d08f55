"""Which adapters a FakeEngine has in slots and which in host memory, kept as vLLM with the plugin keeps them."""

from __future__ import annotations

import time
from collections.abc import Collection

__all__ = ["Tiers"]

_BYTES_PER_S = 10e9


class Tiers:
    """Slots, and the host memory that holds a copy of what is in them and of some more. The least recently used goes.

    Nothing that running requests need is ever moved. A pinned adapter stays in its slot, unless running requests need
    all slots; then it comes back as soon as one of them is free.

    Args:
        slots: Adapters that fit into device memory.
        host: Adapters that fit into host memory.

    Attributes:
        slots: See there.
        host_capacity: See there; at least as many as there are slots.
        activations: How often an adapter was put into a slot.
        activation_s: How long that took in all, in seconds.
        activation_bytes: How much was moved for it.
    """

    def __init__(self, slots: int, host: int) -> None:
        self.slots = slots
        self.host_capacity = max(slots, host)
        self.activations = 0
        self.activation_s = 0.0
        self.activation_bytes = 0
        self._held: list[str | None] = [None] * slots
        self._host: dict[str, int] = {}  # bytes by name; the least recently used first
        self._pinned: set[str] = set()
        self._used_at: dict[str, float] = {}
        self._took_s: dict[str, float] = {}

    @property
    def slots_used(self) -> int:
        """Slots that hold an adapter."""
        return sum(name is not None for name in self._held)

    @property
    def host_used(self) -> int:
        """Adapters in host memory, those in slots among them."""
        return len(self._host)

    @property
    def pins(self) -> frozenset[str]:
        """The pinned adapters."""
        return frozenset(self._pinned)

    def tier(self, name: str) -> str:
        """Where an adapter is: `device`, `host` or `disk`."""
        if name in self._held:
            return "device"
        return "host" if name in self._host else "disk"

    def slot(self, name: str) -> int | None:
        """The slot it is in."""
        return self._held.index(name) if name in self._held else None

    def used_at(self, name: str) -> float | None:
        """When a request last used it, Unix time."""
        return self._used_at.get(name)

    def took_s(self, name: str) -> float | None:
        """How long it took, in seconds, to put it into a slot the last time."""
        return self._took_s.get(name)

    def to_host(self, name: str, size: int, needed: Collection[str]) -> None:
        """Have it in host memory; `needed` are the adapters of running requests."""
        if name not in self._host:
            while len(self._host) >= self.host_capacity and (victim := self._oldest(self._host, needed)):
                self._evict(victim)
        self._host.pop(name, None)
        self._host[name] = size

    def to_device(self, name: str, size: int, needed: Collection[str]) -> bool:
        """Have it in a slot; False if running requests need all slots."""
        self.to_host(name, size, {*needed, name})
        if name in self._held:
            return True
        if None not in self._held:
            victim = self._oldest(self._held, needed) or self._oldest(self._held, needed, spare_pinned=False)
            if victim is None:
                return False
            self._held[self._held.index(victim)] = None
        self._held[self._held.index(None)] = name
        self._took_s[name] = size / _BYTES_PER_S
        self.activations += 1
        self.activation_s += self._took_s[name]
        self.activation_bytes += size
        return True

    def use(self, name: str, size: int, needed: Collection[str]) -> None:
        """A request uses it now."""
        self.to_device(name, size, needed)
        self._used_at[name] = time.time()

    def settle(self, needed: Collection[str]) -> None:
        """Bring pinned adapters back that had to leave their slots."""
        for name in self._pinned:
            if name not in self._held and (None in self._held or self._oldest(self._held, needed)):
                self.to_device(name, self._host[name], needed)

    def pin(self, name: str) -> bool:
        """Keep it in its slot; False if no slot would be left for others."""
        if len(self._pinned | {name}) >= self.slots:
            return False
        self._pinned.add(name)
        return True

    def unpin(self, name: str) -> None:
        """Let it go like any other."""
        self._pinned.discard(name)

    def drop(self, name: str) -> None:
        """Know nothing of it any more."""
        self.unpin(name)
        self._evict(name)
        self._used_at.pop(name, None)
        self._took_s.pop(name, None)

    def _evict(self, name: str) -> None:
        self._host.pop(name, None)
        if name in self._held:
            self._held[self._held.index(name)] = None

    def _oldest(
        self, among: Collection[str | None], needed: Collection[str], *, spare_pinned: bool = True
    ) -> str | None:
        spared = {*needed, *(self._pinned if spare_pinned else ())}
        return next((name for name in self._host if name in among and name not in spared), None)
