"""A store in memory that fails as it is told: a double of `records.Store` for what is built on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from tuneplex.errors import StoreConflict, StoreDown, StoreMissing
from tuneplex.identity import DEFAULT_TENANT, Access, Key, KeyState, Tenant
from tuneplex.journal import Finished
from tuneplex.records import Counted, EngineCounters, Spending, Usage
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord

__all__ = ["MemoryRecords"]


class MemoryRecords:
    """Tenants and keys in memory.

    Attributes:
        down: It does not answer.
        cut: It ends the connection after it has committed.
        gate: While this is not set, every call hangs.
        finished: Requests that are over, by id.
        engines: What engines have counted, by their starts.
        used: What it answers about usage.
        asked: What it was asked about it last.
    """

    def __init__(self) -> None:
        self.down = False
        self.cut = False
        self.gate = threading.Event()
        self.gate.set()
        self.finished: dict[str, Finished] = {}
        self.engines: dict[str, EngineCounters] = {}
        self.used: list[Usage] = []
        self._events: dict[str, list[AdapterEvent]] = {}
        self._adapters: dict[tuple[str, str], AdapterRecord] = {}
        self.asked: dict[str, object] = {}
        self._tenants = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT)}
        self._keys: dict[str, Key] = {}
        self._counted: dict[tuple[str, Counted], int] = {}
        self._generation = 1
        self._required = False

    def _answer(self) -> None:
        self.gate.wait()
        if self.down:
            raise StoreDown("the store (memory) does not answer: it was told to be down")

    @contextmanager
    def _change(self) -> Iterator[None]:
        self._answer()
        yield
        self._generation += 1
        if self.cut:
            raise StoreDown("the store (memory) does not answer: the connection is gone")

    def backup(self) -> tuple[int, dict[str, Tenant], dict[str, Key]]:
        """All that it holds."""
        return self._generation, self._tenants.copy(), self._keys.copy()

    def restore(self, backup: tuple[int, dict[str, Tenant], dict[str, Key]]) -> None:
        """Hold that again, and no key was ever made."""
        self._generation, self._tenants, self._keys = backup
        self._required = False

    def prepare(self, *, refuse_empty: str = "") -> None:
        """Nothing is to be made."""
        del refuse_empty
        self._answer()

    def keep_requests(self, fleet: str, finished: Sequence[Finished]) -> None:
        """Keep requests that are over."""
        del fleet
        self._answer()
        for one in finished:
            self.finished.setdefault(one.id, one)

    def expire_requests(self, fleet: str, before: int) -> int:
        """Forget one request that is too old."""
        del fleet
        self._answer()
        old = [one.id for one in self.finished.values() if one.closed // 86400 < before]
        for name in old[:1]:
            del self.finished[name]
        return len(old[:1])

    def requests(self, fleet: str, request_id: str) -> list[Finished]:
        """Requests that are over."""
        del fleet
        self._answer()
        return [one for one in self.finished.values() if one.request_id == request_id]

    def usage(
        self, fleet: str, *, by: Sequence[str], since: int, until: int, only: Mapping[str, str] | None = None
    ) -> list[Usage]:
        """What it was told to answer."""
        self._answer()
        self.asked = {"fleet": fleet, "by": list(by), "since": since, "until": until, "only": only}
        return self.used

    def keep_counters(self, fleet: str, counters: Sequence[EngineCounters]) -> None:
        """Keep what engines say; what they said first stays."""
        del fleet
        self._answer()
        for one in counters:
            first = self.engines.get(one.engine, one)
            fields = {name: getattr(first, name) for name in ("since", "first_prompt", "first_completion")}
            self.engines[one.engine] = msgspec.structs.replace(one, **fields)

    def counters(self, fleet: str) -> list[EngineCounters]:
        """What engines have said."""
        del fleet
        self._answer()
        return sorted(self.engines.values(), key=lambda one: one.since)

    def requests_since(self, fleet: str, since: float) -> list[Finished]:
        """Requests that were over later."""
        del fleet
        self._answer()
        return [one for one in self.finished.values() if one.closed >= since]

    def adapters(self, fleet: str) -> tuple[AdapterRecord, ...]:
        """What is known of adapters."""
        self._answer()
        return tuple(sorted((one for key, one in self._adapters.items() if key[0] == fleet), key=lambda one: one.name))

    def change_adapter(
        self, fleet: str, name: str, change: Callable[[AdapterRecord | None], AdapterChange]
    ) -> AdapterRecord | None:
        """Keep what `change` makes of it; it ends the connection as it does for other changes."""
        self._answer()
        record, events = change(self._adapters.get((fleet, name)))
        if record is None:
            self._adapters.pop((fleet, name), None)
        else:
            self._adapters[fleet, name] = record
        self._events.setdefault(fleet, []).extend(events)
        if self.cut:
            raise StoreDown("the store (memory) does not answer: the connection is gone")
        return record

    def adapter_events(self, fleet: str, adapter: str = "", limit: int = 100) -> tuple[AdapterEvent, ...]:
        """What was done."""
        self._answer()
        return tuple(one for one in self._events.get(fleet, ()) if adapter in {"", one.adapter})[-limit:]

    def close(self) -> None:
        """Nothing is open."""

    def generation(self) -> int:
        """Grows with every change."""
        self._answer()
        return self._generation

    def access(self, now: float) -> Access:
        """What gateways need to know."""
        self._answer()
        active = tuple(key for key in self.keys() if key.state(now) is KeyState.ACTIVE)
        return Access(self._generation, self._required, "salt", self.tenants(), active)

    def tenants(self) -> tuple[Tenant, ...]:
        """All of them, by name."""
        self._answer()
        return tuple(self._tenants[name] for name in sorted(self._tenants))

    def add_tenant(self, tenant: Tenant) -> None:
        """Add one."""
        with self._change():
            if tenant.name in self._tenants:
                raise StoreConflict(f"there is a tenant {tenant.name!r} already")
            self._tenants[tenant.name] = tenant

    def change_tenant(self, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        """Replace one."""
        with self._change():
            self._tenants[name] = change(self._tenant(name))
            return self._tenants[name]

    def remove_tenant(self, name: str, now: float | None = None) -> None:
        """Remove one without active keys."""
        del now
        with self._change():
            if name == DEFAULT_TENANT:
                raise StoreConflict(f"the tenant {name!r} is always there")
            if any(key.state(0) is KeyState.ACTIVE for key in self.keys(name)):
                raise StoreConflict(f"the tenant {name!r} has active keys")
            self._tenant(name)
            del self._tenants[name]
            self._keys = {key.id: key for key in self._keys.values() if key.tenant != name}

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        """All of them, oldest first."""
        self._answer()
        found = (key for key in self._keys.values() if tenant in {None, key.tenant})
        return tuple(sorted(found, key=lambda key: (key.created, key.id)))

    def key(self, key_id: str) -> Key:
        """One of them."""
        self._answer()
        if key_id not in self._keys:
            raise StoreMissing(f"there is no key {key_id!r}")
        return self._keys[key_id]

    def add_key(self, key: Key, *, ends: tuple[str, int] | None = None) -> None:
        """Add one, and perhaps end another one."""
        with self._change():
            self._tenant(key.tenant)
            if key.id in self._keys:
                raise StoreConflict(f"there is a key {key.id!r} already")
            if ends is not None:
                old = self.key(ends[0])
                if old.revoked is not None:
                    raise StoreConflict(f"the key {old.id!r} is revoked")
                earlier = ends[1] if old.expires is None else min(old.expires, ends[1])
                self._keys[old.id] = msgspec.structs.replace(old, expires=earlier)
            self._keys[key.id] = key
            self._required = True

    def revoke_key(self, key_id: str, now: int) -> Key:
        """Revoke one."""
        with self._change():
            key = self.key(key_id)
            if key.revoked is None:
                key = self._keys[key_id] = msgspec.structs.replace(key, revoked=now)
            return key

    def change_key(self, key_id: str, change: Callable[[Key], Key]) -> Key:
        """Change what can be changed of one."""
        with self._change():
            found = self.key(key_id)
            key = change(found)
            fields = {name: getattr(key, name) for name in ("label", "adapters", "base", "limits")}
            self._keys[key_id] = msgspec.structs.replace(found, **fields)
            return self._keys[key_id]

    def spending(self, fleet: str, kind: str, period: int) -> Spending:
        """What was counted in a period."""
        self._answer()
        found: Spending = {}
        for (whose, (what, when, subject, process)), amount in self._counted.items():
            if (whose, what, when) == (fleet, kind, period):
                found.setdefault(subject, {})[process] = amount
        return found

    def keep_spending(self, fleet: str, counted: Mapping[Counted, int]) -> None:
        """Keep what was counted."""
        self._answer()
        self._counted.update({(fleet, key): amount for key, amount in counted.items()})
        if self.cut:
            raise StoreDown("the store (memory) does not answer: the connection is gone")

    def forget_spending(self, fleet: str) -> None:
        """Everything is kept: no test lasts that long."""
        del fleet
        self._answer()

    def _tenant(self, name: str) -> Tenant:
        if name not in self._tenants:
            raise StoreMissing(f"there is no tenant {name!r}")
        return self._tenants[name]
