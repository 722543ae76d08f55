"""Which versions the fleet's adapters have: what the store knows of them, brought together with the fleet file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tuneplex.control.registry import Records
from tuneplex.control.versions import ITSELF, as_filed, fleet_with
from tuneplex.errors import StoreConflict, StoreError, StoreMissing
from tuneplex.files import write_whole
from tuneplex.log import get_logger
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord
from tuneplex.types import FleetSpec

__all__ = ["Catalog", "Fleet"]

T = TypeVar("T")
_log = get_logger(__name__)
_PAUSE_S = 2.0


class Fleet(Protocol):
    """What is told of another fleet; the `Controller`."""

    spec: FleetSpec

    def apply(self, spec: FleetSpec) -> None:
        """Aim at another description. What was given up is tried again."""

    def follow_versions(self, spec: FleetSpec) -> None:
        """Aim at a description that differs in the versions of adapters."""


class _Reads(Protocol):
    async def read(self, work: Callable[[Records], T]) -> T:
        """Ask the store."""


Acted = Callable[[AdapterEvent], Awaitable[None]]


class Catalog:
    """Keeps the versions in the store, and lets the fleet follow them.

    Only this changes what the store knows of a fleet's adapters, so a copy in a file can take the store's place while
    that is away: the fleet goes on with the versions it had. Changes wait for the store.

    Args:
        fleet: Follows; its description is the fleet file's until this is opened.
        store: The store.
        snapshot: The file with the copy.
        acted: Told of what tuneplex has done by itself.
    """

    def __init__(self, fleet: Fleet, store: _Reads, snapshot: Path, acted: Acted | None = None) -> None:
        self._fleet = fleet
        self._store = store
        self._snapshot = snapshot
        self._acted = acted
        self._filed = fleet.spec
        self._records: dict[str, AdapterRecord] = {}
        self._behind = True  # the store has not heard yet what the fleet file says
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()

    @property
    def records(self) -> dict[str, AdapterRecord]:
        """What is known of each adapter, by name."""
        return self._records

    def open(self) -> None:
        """Begin with what the copy says, until the store answers."""
        self._records = _read(self._snapshot, self._filed.name)
        self._hear_file()
        self._show()

    async def run(self) -> None:
        """Tell the store what the fleet file says, as soon as it answers; again after each `apply`."""
        while True:
            self._wake.clear()
            if self._behind:
                with contextlib.suppress(StoreError):
                    await self._catch_up()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S if self._behind else None):
                    await self._wake.wait()

    def fleet_of(self, spec: FleetSpec) -> FleetSpec:
        """The fleet that a fleet file comes to with the versions that are known."""
        heard = {name: change[0] for name, change in _heard(self._records, spec)}
        return fleet_with(spec, {name: record for name, record in heard.items() if record is not None})

    def apply(self, spec: FleetSpec) -> None:
        """Another fleet file is applied."""
        self._filed = spec
        self._behind = True
        self._wake.set()
        self._hear_file()
        self._fleet.apply(fleet_with(spec, self._records))
        self._follow()

    async def change(self, name: str, change: Callable[[AdapterRecord | None], AdapterChange]) -> AdapterRecord | None:
        """Change what is known of an adapter, in the store first; as it is then.

        Raises:
            StoreError: Nothing was changed; StoreMissing and StoreConflict, if `change` says so.
        """
        async with self._turn:
            if self._behind:
                await self._hear_store()
            record, events = await self._kept(name, change)
            self._follow()  # at once: whoever has asked may be gone before all are told
            await self._tell(events)
            return record

    async def events(self, name: str = "") -> tuple[AdapterEvent, ...]:
        """What was done with an adapter, or with all of them, oldest first.

        Raises:
            StoreError: It cannot answer.
        """
        fleet = self._filed.name
        return await self._store.read(lambda store: store.adapter_events(fleet, name))

    async def _catch_up(self) -> None:
        async with self._turn:
            await self._hear_store()
            self._follow()

    async def _hear_store(self) -> None:
        """Take the store's word for everything but what the fleet file has said since."""
        fleet, filed = self._filed.name, self._filed
        kept = {record.name: record for record in await self._store.read(lambda store: store.adapters(fleet))}
        self._records = kept
        self._hear_file()  # which holds although the store may be gone again before it has heard of it
        for name, (record, _events) in _heard(kept, filed):
            if record != kept.get(name):
                _record, events = await self._kept(name, _as_filed_by(filed, name))
                await self._tell(events)
        self._behind = filed is not self._filed

    async def _kept(self, name: str, change: Callable[[AdapterRecord | None], AdapterChange]) -> AdapterChange:
        events: list[AdapterEvent] = []

        def noted(record: AdapterRecord | None) -> AdapterChange:
            made = change(record)
            events[:] = made[1]
            return made

        fleet = self._filed.name
        try:
            record = await self._store.read(lambda store: store.change_adapter(fleet, name, noted))
        except (StoreMissing, StoreConflict):
            raise
        except StoreError:
            self._behind = True  # perhaps it is kept all the same: the store is asked once it answers
            self._wake.set()
            raise
        self._records = {key: one for key, one in self._records.items() if key != name}
        if record is not None:
            self._records[name] = record
        return record, events

    async def _tell(self, events: Sequence[AdapterEvent]) -> None:
        for event in events:
            _log.info(f"an adapter's version was {event.action}", version=event.version, who=event.who, why=event.why)
            if self._acted is not None and event.who == ITSELF:
                await self._acted(event)

    def _hear_file(self) -> None:
        """What the fleet file says holds at once, whether the store answers or not."""
        heard = dict(_heard(self._records, self._filed))
        self._records = {name: change[0] for name, change in heard.items() if change[0] is not None}

    def _follow(self) -> None:
        """Let the fleet be as all of it says; another file may have been applied while the store was asked."""
        self._hear_file()
        self._show()
        try:
            write_whole(self._snapshot, msgspec.json.encode((self._filed.name, list(self._records.values()))))
        except OSError as error:
            _log.warning("the versions of adapters cannot be written down", error=error)

    def _show(self) -> None:
        spec = fleet_with(self._filed, self._records)
        if spec != self._fleet.spec:
            self._fleet.follow_versions(spec)


def _heard(records: dict[str, AdapterRecord], spec: FleetSpec) -> Sequence[tuple[str, AdapterChange]]:
    """What becomes of each adapter when a fleet file is applied."""
    filed, at = {version.name: version for version in spec.adapters}, int(time.time())
    names = (*filed, *(name for name in records if name not in filed))
    return [(name, as_filed(records.get(name), filed.get(name), at)) for name in names]


def _as_filed_by(spec: FleetSpec, name: str) -> Callable[[AdapterRecord | None], AdapterChange]:
    version = next((version for version in spec.adapters if version.name == name), None)
    return lambda record: as_filed(record, version, int(time.time()))


def _read(snapshot: Path, fleet: str) -> dict[str, AdapterRecord]:
    try:
        name, records = msgspec.json.decode(snapshot.read_bytes(), type=tuple[str, list[AdapterRecord]])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("what was known of the adapters' versions cannot be read", file=snapshot, error=error)
        return {}
    return {record.name: record for record in records} if name == fleet else {}
