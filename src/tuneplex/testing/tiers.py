"""Which adapters a FakeEngine has in slots and which in host memory, kept as vLLM with the plugin keeps them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

__all__ = ["Activations", "Adapter", "Tiers"]

_BYTES_PER_S = 10e9


class Adapter(msgspec.Struct, frozen=True):
    """One loaded adapter.

    Attributes:
        name: Its name.
        path: Where it was loaded from.
        weights: What makes it speak its own way.
        loaded_at: Unix time.
        id: The engine's number for it.
        rank: Its own rank.
        size: Bytes in host memory.
    """

    name: str
    path: str
    weights: str
    loaded_at: int
    id: int
    rank: int
    size: int


@dataclass
class Activations:
    """How often adapters were put into slots, and what that took: seconds and bytes."""

    count: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Tiers:
    """Slots, and the host memory that holds a copy of what is in them and of some more. The least recently used goes.

    Nothing that running requests need is ever moved. A pinned adapter stays in its slot, unless running requests need
    all of them; then it comes back when a slot is free. Who is needed is told by each call, as the adapters' ids.

    Args:
        slots: Adapters that fit into device memory.
        host: Adapters that fit into host memory.

    Attributes:
        slots: See there.
        host_capacity: See there; at least as many as there are slots.
        activations: What was put into slots so far.
    """

    def __init__(self, slots: int, host: int) -> None:
        self.slots = slots
        self.host_capacity = max(slots, host)
        self.activations = Activations()
        # Both the least recently used first.
        self._host: dict[int, Adapter] = {}
        self._device: dict[int, int] = {}
        self._pinned: dict[int, None] = {}
        self._used_at: dict[int, float] = {}
        self._took_s: dict[int, float] = {}

    @property
    def slots_used(self) -> int:
        """Slots that hold an adapter."""
        return len(self._device)

    @property
    def host_used(self) -> int:
        """Adapters in host memory, those in slots among them."""
        return len(self._host)

    @property
    def pins(self) -> Collection[int]:
        """The ids of pinned adapters."""
        return self._pinned.keys()

    def tier(self, adapter: Adapter) -> str:
        """Where an adapter is: `device`, `host` or `disk`."""
        if adapter.id in self._device:
            return "device"
        return "host" if adapter.id in self._host else "disk"

    def slot(self, adapter: Adapter) -> int | None:
        """The slot it is in."""
        return self._device.get(adapter.id)

    def used_at(self, adapter: Adapter) -> float | None:
        """When a request last used it, Unix time."""
        return self._used_at.get(adapter.id)

    def took_s(self, adapter: Adapter) -> float | None:
        """How long it took, in seconds, to put it into a slot the last time."""
        return self._took_s.get(adapter.id)

    def to_host(self, adapter: Adapter, needed: Collection[int]) -> None:
        """Have it in host memory."""
        if adapter.id not in self._host:
            excess = len(self._host) + 1 - self.host_capacity
            spare = [one for one in self._host if one not in needed and one not in self._pinned]
            for victim in sorted(spare, key=self._device.__contains__)[: max(0, excess)]:
                self._evict(victim)
            self._forget(adapter.id)
        self._host.pop(adapter.id, None)
        self._host[adapter.id] = adapter

    def to_device(self, adapter: Adapter, needed: Collection[int], *, pins_yield: bool = False) -> bool:
        """Have it in a slot and in host memory; False if there is no slot to have.

        Args:
            adapter: The adapter.
            needed: The adapters of requests.
            pins_yield: Whether a pinned one may lose its slot to it.
        """
        self.to_host(adapter, {*needed, adapter.id})
        slot = self._device.pop(adapter.id, None)
        if slot is None:
            slot = self._free_slot(needed, pins_yield=pins_yield)
            if slot is None:
                return False
            took_s = self._took_s[adapter.id] = adapter.size / _BYTES_PER_S
            self.activations.count += 1
            self.activations.seconds += took_s
            self.activations.bytes += adapter.size
        self._device[adapter.id] = slot
        return True

    def step(self, batch: Iterable[Adapter]) -> None:
        """Requests that run use these adapters now; pinned ones without a slot get one back, if there is one left."""
        batch = tuple(batch)
        needed = {adapter.id for adapter in batch}
        for adapter in batch:
            self.to_device(adapter, needed, pins_yield=True)
            self._used_at[adapter.id] = time.time()
        for pinned in self._pinned:
            if pinned not in self._device:
                self.to_device(self._host[pinned], needed)

    def pin(self, adapter: Adapter, needed: Collection[int]) -> bool:
        """Keep it in a slot from now on; False if none would be left for others."""
        self.to_host(adapter, needed)
        if adapter.id not in self._pinned and len(self._pinned) + 1 >= self.slots:
            return False
        self.to_device(adapter, needed)
        self._pinned[adapter.id] = None
        return True

    def unpin(self, adapter: Adapter) -> None:
        """Let it go like any other."""
        self._pinned.pop(adapter.id, None)

    def drop(self, adapter: Adapter) -> None:
        """Know nothing of it any more."""
        self.unpin(adapter)
        self._evict(adapter.id)
        self._forget(adapter.id)

    def _evict(self, adapter: int) -> None:
        self._host.pop(adapter, None)
        self._device.pop(adapter, None)

    def _forget(self, adapter: int) -> None:
        """What was told of it before it was last read from the disk."""
        self._used_at.pop(adapter, None)
        self._took_s.pop(adapter, None)

    def _free_slot(self, needed: Collection[int], *, pins_yield: bool) -> int | None:
        taken = self._device.values()
        free = next((slot for slot in range(self.slots) if slot not in taken), None)
        if free is not None:
            return free
        spare = [one for one in self._device if one not in needed]
        victim = next((one for one in spare if one not in self._pinned), spare[0] if spare and pins_yield else None)
        return None if victim is None else self._device.pop(victim)
