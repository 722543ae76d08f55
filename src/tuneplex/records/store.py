"""The store: tenants and keys in a database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec
from sqlalchemy import Connection, delete, insert, or_, select, update

from tuneplex.errors import StoreConflict, StoreMissing
from tuneplex.identity import DEFAULT_TENANT, Access, Key, KeyState, Tenant
from tuneplex.journal import Finished
from tuneplex.records import backup, tables, upkeep
from tuneplex.records.adapters import change_adapter, read_adapters, read_events
from tuneplex.records.counters import EngineCounters, keep_counters, read_counters
from tuneplex.records.database import Database
from tuneplex.records.requests import expire_requests, find_requests, keep_requests, read_arrivals, read_requests
from tuneplex.records.rows import read_keys, read_tenants, row
from tuneplex.records.service import FirstTokens, Served, read_first_tokens, read_served
from tuneplex.records.spending import Counted, Spending, forget_spending, read_spending, write_spending
from tuneplex.records.upkeep import StoreFacts, Upgraded
from tuneplex.records.usage import Usage, last_added_up, read_usage
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord

__all__ = ["Store"]

_NEVER = 1e11  # Unix time; infinity has no day
_CHANGEABLE = frozenset({"label", "adapters", "base", "limits"})


class Store:
    """Tenants and keys, in SQLite or PostgreSQL.

    Every method raises `StoreDown` when the database does not answer, and says why. Whoever writes waits for others who
    write; a method that fails has changed nothing. It may be used from any thread.

    Args:
        url: `sqlite:///PATH` or `postgresql://…`; nothing is opened yet.

    Raises:
        StoreError: The URL is of neither kind.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    def __repr__(self) -> str:
        """Without the password, so that it cannot slip into a log."""
        return f"Store({self._database.where!r})"

    @property
    def where(self) -> str:
        """Which database, for messages: without the password."""
        return self._database.where

    def prepare(self, *, refuse_empty: str = "") -> Upgraded:
        """Make the tables when there are none, and see that they are of this program's revision.

        An older store in SQLite is brought to it, after a copy of its file was made beside it.

        Args:
            refuse_empty: What to do when there are none, for people; given where there must be some, because the
                tenants and keys that were in them are known.

        Raises:
            StoreError: The database belongs to something else, or its revision is another one.
            StoreRefused: The database refuses, and will go on to; or it is empty, and must not be.
            StoreDown: It does not answer.
        """
        return upkeep.prepare(self._database, refuse_empty)

    def upgrade(self) -> Upgraded:
        """Bring the tables to this program's revision, after a copy of a store in SQLite was made beside its file.

        Raises:
            StoreError: The database belongs to something else, or a newer program made it.
        """
        return upkeep.upgrade(self._database)

    def facts(self, now: float) -> StoreFacts:
        """What there is at `now`, Unix time, whatever its revision."""
        return upkeep.facts(self._database, now)

    def backup(self, file: Path, now: float, *, overwrite: bool = False) -> int:
        """Write all of the store into a file for this user's eyes only, whole or not at all; how many rows it has.

        Args:
            file: Where.
            now: Unix time, noted in the file.
            overwrite: Replace a file that is there.

        Raises:
            StoreConflict: The file is there.
            StoreError: There is no store, it is of a newer program, or the file cannot be written.
        """
        return backup.backup(self._database, file, now, overwrite=overwrite)

    def restore(self, file: Path, *, replace: bool = False) -> int:
        """Take all of the store from a backup, of either database and any revision; how many rows it has.

        Args:
            file: The backup.
            replace: Lose what the store holds now.

        Raises:
            StoreConflict: The store holds tenants or keys.
            StoreError: The file is no backup, or is damaged; then nothing was changed.
        """
        return backup.restore(self._database, file, replace=replace)

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self._database.close()

    def generation(self) -> int:
        """Grows with every change of tenants or keys, whoever makes it."""
        with self._database.reading() as connection:
            return _generation(connection)

    def access(self, now: float) -> Access:
        """What gateways need to know at `now`, Unix time."""
        active = or_(tables.keys.c.expires.is_(None), tables.keys.c.expires > now)
        with self._database.reading() as connection:
            meta = connection.execute(select(tables.meta)).one()
            return Access(
                generation=meta.generation,
                required=meta.keys_ever,
                salt=meta.salt,
                tenants=read_tenants(connection),
                keys=read_keys(connection, tables.keys.c.revoked.is_(None), active),
            )

    def tenants(self) -> tuple[Tenant, ...]:
        """All of them, by name; `default` is there from the start."""
        with self._database.reading() as connection:
            return read_tenants(connection)

    def add_tenant(self, tenant: Tenant) -> None:
        """Add a tenant.

        Raises:
            StoreConflict: The name is taken.
        """
        with self._database.writing(f"there is a tenant {tenant.name!r} already") as connection:
            _change(connection)
            connection.execute(insert(tables.tenants), row(tenant))

    def change_tenant(self, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        """Replace all but the name of a tenant; the tenant as it is now.

        Args:
            name: Which.
            change: Makes the new tenant of the one that is there. Nobody else changes that meanwhile, so nothing that
                another fleet has just changed is taken back.

        Raises:
            StoreMissing: There is none of this name.
        """
        with self._database.writing() as connection:
            _change(connection)
            found = next((one for one in read_tenants(connection) if one.name == name), None)
            if found is None:
                raise _no_tenant(name)
            tenant = change(found)
            connection.execute(update(tables.tenants).where(tables.tenants.c.name == name).values(row(tenant)))
            return tenant

    def remove_tenant(self, name: str, now: float | None = None) -> None:
        """Remove a tenant, and with it its keys, none of which opens anything any more.

        Raises:
            StoreConflict: A key of it is active at `now` (Unix time; the present when it is not given), or it is the
                tenant that is always there.
            StoreMissing: There is none of this name.
        """
        if name == DEFAULT_TENANT:
            raise StoreConflict(f"the tenant {DEFAULT_TENANT!r} is always there")
        now = time.time() if now is None else now
        with self._database.writing() as connection:
            _change(connection)
            keys = read_keys(connection, tables.keys.c.tenant == name)
            active = sum(key.state(now) is KeyState.ACTIVE for key in keys)
            if active:
                raise StoreConflict(f"the tenant {name!r} has {active} active {'key' if active == 1 else 'keys'}")
            connection.execute(delete(tables.keys).where(tables.keys.c.tenant == name))
            if connection.execute(delete(tables.tenants).where(tables.tenants.c.name == name)).rowcount == 0:
                raise _no_tenant(name)

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        """All keys, or all of one tenant, oldest first; also those that open nothing any more."""
        with self._database.reading() as connection:
            return read_keys(connection, *([] if tenant is None else [tables.keys.c.tenant == tenant]))

    def key(self, key_id: str) -> Key:
        """One key.

        Raises:
            StoreMissing: There is none with this id.
        """
        with self._database.reading() as connection:
            return _key(connection, key_id)

    def add_key(self, key: Key, *, ends: tuple[str, int] | None = None) -> None:
        """Add a key; from now on nobody may call without one.

        Args:
            key: As `mint` made it.
            ends: The id of the key that it replaces, and when that one expires, unless it does so earlier.

        Raises:
            StoreConflict: The id or the secret is taken, or the key to be replaced is revoked.
            StoreMissing: There is no such tenant, or no key to be replaced.
        """
        with self._database.writing(f"there is a key {key.id!r} already") as connection:
            _change(connection, keys_ever=True)
            if connection.scalar(select(tables.tenants.c.name).where(tables.tenants.c.name == key.tenant)) is None:
                raise _no_tenant(key.tenant)
            if ends is not None:
                _end(connection, *ends)
            connection.execute(insert(tables.keys), row(key))

    def change_key(self, key_id: str, change: Callable[[Key], Key]) -> Key:
        """Replace the label of a key, what it may call, and its limits; the rest stays. The key as it is now.

        Args:
            key_id: Which.
            change: Makes the new key of the one that is there; see `change_tenant`.

        Raises:
            StoreMissing: There is none with this id.
        """
        with self._database.writing() as connection:
            _change(connection)
            found = _key(connection, key_id)
            values = {name: value for name, value in row(change(found)).items() if name in _CHANGEABLE}
            connection.execute(update(tables.keys).where(tables.keys.c.id == key_id).values(values))
            return msgspec.structs.replace(found, **values)

    def revoke_key(self, key_id: str, now: int) -> Key:
        """Revoke a key; one that is revoked already stays as it is.

        Raises:
            StoreMissing: There is none with this id.
        """
        with self._database.writing() as connection:
            _change(connection)
            key = _key(connection, key_id)
            if key.revoked is None:
                key = msgspec.structs.replace(key, revoked=now)
                connection.execute(update(tables.keys).where(tables.keys.c.id == key_id).values(revoked=now))
            return key

    def spending(self, fleet: str, kind: str, period: int) -> Spending:
        """What a fleet has counted of one kind of limit in a period: subject -> process -> amount.

        Args:
            fleet: The fleet's name.
            kind: The limit, as the field of `Limits` is called.
            period: The day, or the month, of UTC since 1970.
        """
        with self._database.reading() as connection:
            return read_spending(connection, fleet, kind, period)

    def keep_spending(self, fleet: str, counted: Mapping[Counted, int]) -> None:
        """Keep how much each process has counted by now, in the place of what was kept of it.

        Doing it again changes nothing, so it can be done again when it is not known whether it was done. The generation
        stays.

        Args:
            fleet: The fleet's name.
            counted: Kind, period, subject and process -> amount.
        """
        with self._database.writing("somebody else counts for the same fleet, too") as connection:
            write_spending(connection, fleet, counted)

    def forget_spending(self, fleet: str) -> None:
        """Let go of what a fleet has counted in periods that are long over."""
        with self._database.writing() as connection:
            forget_spending(connection, fleet)

    # --- adapters

    def adapters(self, fleet: str) -> tuple[AdapterRecord, ...]:
        """What is known of the adapters of a fleet, by name."""
        with self._database.reading() as connection:
            return read_adapters(connection, fleet)

    def change_adapter(
        self, fleet: str, name: str, change: Callable[[AdapterRecord | None], AdapterChange]
    ) -> AdapterRecord | None:
        """Keep what `change` makes of what is known of an adapter; that, as it is now.

        The generation stays: gateways hear of versions from control, not of the store.

        Args:
            fleet: The fleet's name.
            name: The adapter's.
            change: Makes the new record of the one that is there, and says what was done; see `change_tenant`.

        Raises:
            StoreConflict: It would be too much to keep.
        """
        with self._database.writing() as connection:
            connection.execute(select(tables.meta).with_for_update())  # in PostgreSQL, writers wait for each other
            return change_adapter(connection, fleet, name, change)

    def adapter_events(self, fleet: str, adapter: str = "", limit: int = 100) -> tuple[AdapterEvent, ...]:
        """What was done with the adapters of a fleet, or with one of them: the last events, oldest first."""
        with self._database.reading() as connection:
            return read_events(connection, fleet, adapter, limit)

    # --- requests that are over

    def keep_requests(self, fleet: str, finished: Sequence[Finished]) -> None:
        """Keep requests that are over; doing it again changes nothing."""
        with self._database.writing() as connection:
            keep_requests(connection, fleet, finished)

    def requests(self, fleet: str, request_id: str) -> list[Finished]:
        """The requests that clients know by this id, oldest first: mostly one, but clients can choose their ids.

        They are the last `MOST_FOUND` at most.
        """
        with self._database.reading() as connection:
            return find_requests(connection, fleet, request_id)

    def each_request(self, fleet: str, since: float, until: float) -> Iterator[Finished]:
        """The requests that were over in a time, in the order of their ends; Unix times, `until` not included."""
        with self._database.reading() as connection:
            yield from read_requests(connection, fleet, since, until)

    def requests_since(self, fleet: str, since: float, limit: int = 100_000) -> list[Finished]:
        """The first requests that were over at some time or later, Unix time."""
        with self._database.reading() as connection, closing(read_requests(connection, fleet, since, _NEVER)) as found:
            return list(islice(found, limit))

    def each_arrival(self, fleet: str, since: float, until: float) -> Iterator[Finished]:
        """The requests that are over and came in a time, in the order in which they came; Unix times, as above."""
        with self._database.reading() as connection:
            yield from read_arrivals(connection, fleet, since, until)

    def expire_requests(self, fleet: str, before: int) -> int:
        """Only add up, from now on, a thousand requests of the days before this one; how many, 0 if all are gone."""
        with self._database.writing() as connection:
            return expire_requests(connection, fleet, before)

    def last_added_up(self, fleet: str) -> int | None:
        """The last day, of UTC since 1970, of which requests are only kept added up; None if there is none."""
        with self._database.reading() as connection:
            return last_added_up(connection, fleet)

    def usage(
        self, fleet: str, *, by: Sequence[str], since: int, until: int, only: Mapping[str, str] | None = None
    ) -> list[Usage]:
        """What a fleet has used.

        Args:
            fleet: The fleet's name.
            by: Of `GROUPS`; everything together if there are none.
            since: The first day, of UTC since 1970.
            until: The last day, included.
            only: Values that the requests must have, by the names in `GROUPS`.
        """
        with self._database.reading() as connection:
            return read_usage(connection, fleet, by=by, since=since, until=until, only=only or {})

    def served(
        self, fleet: str, since: float, *, by: Sequence[str], late_s: Mapping[str, float], usual_s: float
    ) -> list[Served]:
        """How many requests were served and how many should have been; see `service.read_served`."""
        with self._database.reading() as connection:
            return read_served(connection, fleet, since, by=by, late_s=late_s, usual_s=usual_s)

    def first_tokens(self, fleet: str, since: float, *, by: Sequence[str]) -> dict[tuple[str, ...], FirstTokens]:
        """How long streams took to their first events, by group; see `service.read_first_tokens`."""
        with self._database.reading() as connection:
            return read_first_tokens(connection, fleet, since, by=by)

    def keep_counters(self, fleet: str, counters: Sequence[EngineCounters]) -> None:
        """Keep what engines say that they have counted by now; what they said first stays."""
        with self._database.writing() as connection:
            keep_counters(connection, fleet, counters)

    def counters(self, fleet: str) -> list[EngineCounters]:
        """What engines have said last, and first."""
        with self._database.reading() as connection:
            return read_counters(connection, fleet)


def _change(connection: Connection, **values: bool) -> None:
    """Begin a change: the generation grows, and its row makes other writers wait until this one is done."""
    connection.execute(update(tables.meta).values(generation=tables.meta.c.generation + 1, **values))


def _generation(connection: Connection) -> int:
    return int(connection.execute(select(tables.meta.c.generation)).scalar_one())


def _key(connection: Connection, key_id: str) -> Key:
    found = read_keys(connection, tables.keys.c.id == key_id)
    if not found:
        raise _no_key(key_id)
    return found[0]


def _end(connection: Connection, key_id: str, expires: int) -> None:
    old = _key(connection, key_id)
    if old.revoked is not None:
        raise StoreConflict(f"the key {key_id!r} is revoked")
    earlier = expires if old.expires is None else min(old.expires, expires)
    connection.execute(update(tables.keys).where(tables.keys.c.id == key_id).values(expires=earlier))


def _no_key(key_id: str) -> StoreMissing:
    return StoreMissing(f"there is no key {key_id!r}")


def _no_tenant(name: str) -> StoreMissing:
    return StoreMissing(f"there is no tenant {name!r}")
