"""Keeps what gateways know of tenants and keys: reads it from the store, publishes it, and outlives its outages."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tuneplex.control.keyring import holds_something, next_generation, same, still_required, without_expired
from tuneplex.control.snapshot import read_snapshot, write_snapshot
from tuneplex.control.worker import Unsure, Worker
from tuneplex.errors import StoreConflict, StoreDown, StoreError, StoreMissing, Unavailable
from tuneplex.identity import Access, Key, Tenant
from tuneplex.journal import Finished
from tuneplex.log import get_logger
from tuneplex.records import Counted, EngineCounters, Spending, StoreRefused, Usage
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord
from tuneplex.units import format_duration

__all__ = ["Patience", "Records", "Registry"]

T = TypeVar("T")
_RETRY_AFTER_S = 2


class Records(Protocol):
    """The store as control uses it; `records.Store` is the real one. All of it raises `StoreError`."""

    def prepare(self, *, refuse_empty: str = "") -> object:
        """Make sure that the tables are there; `refuse_empty` says what to do about an empty store that was not."""

    def generation(self) -> int:
        """Differs after every change, whoever made it."""

    def access(self, now: float) -> Access:
        """What gateways need to know."""

    def tenants(self) -> tuple[Tenant, ...]:
        """All of them, by name."""

    def add_tenant(self, tenant: Tenant) -> None:
        """Keep a new one."""

    def change_tenant(self, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        """Keep what `change` makes of it; nobody else changes it meanwhile."""

    def remove_tenant(self, name: str) -> None:
        """Forget one that has no active key."""

    def keys(self, tenant: str | None = None) -> tuple[Key, ...]:
        """All of them, oldest first, also those that open nothing."""

    def key(self, key_id: str) -> Key:
        """One of them."""

    def add_key(self, key: Key, *, ends: tuple[str, int] | None = None) -> None:
        """Keep a new one; `ends` are the id of another one and when that expires from now on."""

    def change_key(self, key_id: str, change: Callable[[Key], Key]) -> Key:
        """Keep what `change` makes of its label, what it may call and its limits."""

    def revoke_key(self, key_id: str, now: int) -> Key:
        """It opens nothing from now on."""

    def spending(self, fleet: str, kind: str, period: int) -> Spending:
        """What was counted of one kind of limit in a period."""

    def keep_spending(self, fleet: str, counted: Mapping[Counted, int]) -> None:
        """Keep these counts in the place of those that are there; doing it again changes nothing."""

    def forget_spending(self, fleet: str) -> None:
        """Let go of periods that are long over."""

    def keep_requests(self, fleet: str, finished: Sequence[Finished]) -> None:
        """Keep requests that are over; doing it again changes nothing."""

    def expire_requests(self, fleet: str, before: int) -> int:
        """Only add up some requests of the days before this one; how many they were, 0 if all are gone."""

    def requests(self, fleet: str, request_id: str) -> list[Finished]:
        """The requests that are over and that clients know by this id, oldest first."""

    def requests_since(self, fleet: str, since: float) -> list[Finished]:
        """The requests that were over at some time or later, Unix time, as many as one trial needs at most."""

    def usage(
        self, fleet: str, *, by: Sequence[str], since: int, until: int, only: Mapping[str, str] | None = None
    ) -> list[Usage]:
        """What a fleet has used; days of UTC since 1970."""

    def keep_counters(self, fleet: str, counters: Sequence[EngineCounters]) -> None:
        """Keep what engines say by now; what they said first stays."""

    def counters(self, fleet: str) -> list[EngineCounters]:
        """What engines have said."""

    def adapters(self, fleet: str) -> tuple[AdapterRecord, ...]:
        """What is known of the adapters of a fleet."""

    def change_adapter(
        self, fleet: str, name: str, change: Callable[[AdapterRecord | None], AdapterChange]
    ) -> AdapterRecord | None:
        """Keep what `change` makes of what is known of an adapter, and what it says that was done."""

    def adapter_events(self, fleet: str, adapter: str = "", limit: int = 100) -> tuple[AdapterEvent, ...]:
        """What was done with the adapters of a fleet, or with one of them."""

    def close(self) -> None:
        """Let go of the database."""


class Patience(msgspec.Struct, frozen=True):
    """How long the registry waits, in seconds.

    Attributes:
        first_s: For the database at the start; then it starts from the snapshot.
        call_s: For the database at any other time; longer than the store itself waits for it.
        poll_s: Between two looks for what others have changed.
        close_s: For the database at the end.
        expired_s: Until gateways forget a key that has expired; as long as they know it, they can say that it has.
    """

    first_s: float = 2.0
    call_s: float = 6.0
    poll_s: float = 0.5
    close_s: float = 1.0
    expired_s: float = 7 * 86400.0


class Registry:
    """Brings changes into the store and tells the gateways.

    The gateways go by what was published last, so the database is only needed for changes. Where control starts
    without it, the snapshot takes its place; where there is no snapshot either, nothing is published, because who
    does not know the keys must not tell gateways that there are none.

    Args:
        store: The database; it is called in a thread of its own.
        snapshot: The file that holds what was published last.
        publish: Tells the gateways.
        file: Where the store keeps everything, if that is a file.
        patience: How long to wait.
    """

    def __init__(
        self,
        store: Records,
        *,
        snapshot: Path,
        publish: Callable[[Access], Awaitable[None]],
        file: Path | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._publish = publish
        self._file = file
        self._begin_anew = f"restore a backup, or remove {snapshot} to begin with an empty one"
        self._patience = patience or Patience()
        self._worker = Worker(self._patience.call_s)
        self._turn = asyncio.Lock()
        self._access: Access | None = None
        self._published = False
        self._unsaved = False
        self._prepared: tuple[int, int] | None = None  # the file that was prepared
        self._next_expiry = math.inf
        self._looked = 0.0  # when, by a clock that can be set
        self._seen: int | None = None  # the store's generation that was read last; None asks for another look
        self._down: tuple[float, str] | None = None

    @property
    def access(self) -> Access | None:
        """What was published last; None before the first time."""
        return self._access if self._published else None

    def trouble(self, now: float) -> str:
        """Since when and why the database does not answer, in words for people; empty when it does."""
        if self._down is None:
            return ""
        since, words = self._down
        known = "keys that are known go on" if self._published else "there is no snapshot of the keys"
        return f"{words}, for {format_duration(max(0.0, now - since))}: {known}, changes are refused"

    async def run(self) -> None:
        """Follow the database until cancelled."""
        try:
            await self._start()
            while True:
                await asyncio.sleep(self._patience.poll_s)
                await self._look()
        finally:
            with contextlib.suppress(StoreError):
                await self._worker.call(self._store.close, self._patience.close_s)
            self._worker.close()

    async def read(self, work: Callable[[Records], T]) -> T:
        """Ask the store.

        Raises:
            StoreError: It cannot answer.
        """

        def ask() -> T:
            self._open()
            return work(self._store)

        return await self._ask(ask)

    async def change(self, what: str, work: Callable[[Records], T]) -> T:
        """Change something in the store. When this returns, it is committed, published and in the snapshot.

        Args:
            what: What is being done, in words.
            work: Does it.

        Raises:
            StoreError: Nothing was changed.
            Unavailable: The database broke off; whether anything was changed is not known.
        """
        async with self._turn:
            await self._ask(self._generation)  # when this fails, nothing has happened
            try:
                result, fresh = await self._ask(lambda: self._do(work))
            except Unsure as error:
                raise Unavailable(
                    f"the database broke off while {what} ({error}): look whether it was done before you try again",
                    code="outcome_unknown",
                    retry_after_s=_RETRY_AFTER_S,
                ) from error
            await self._take(fresh)
            return result

    def _do(self, work: Callable[[Records], T]) -> tuple[T, Access]:
        """Do it, and read what is there afterwards."""
        try:
            result = work(self._store)
        except StoreRefused:
            raise
        except StoreDown as error:
            if self._file is None:  # the connection to a server can break while it commits
                raise Unsure(str(error)) from error
            raise
        try:
            return result, self._store.access(self._past())
        except StoreError as error:
            raise Unsure(str(error)) from error

    async def _start(self) -> None:
        """With what the database has, or else with the snapshot."""
        last = await asyncio.to_thread(read_snapshot, self._snapshot)
        async with self._turn:
            self._access = last
            try:
                await self._read(self._patience.first_s)
            except StoreError:
                await self._start_without(last)

    async def _start_without(self, last: Access | None) -> None:
        log = get_logger(__name__)
        if last is None:
            log.warning("there is no snapshot of the keys either: callers have to wait for the database")
            return
        log.warning("starting with the keys of the snapshot", keys=len(last.keys))
        await self._tell(without_expired(last, self._past()))

    async def _look(self) -> None:
        """See whether others have changed something, or time has."""
        async with self._turn:
            now = time.time()
            if now < self._looked:
                self._seen = None  # the clock was set back: a key may have been taken for expired that is not
            self._looked = now
            if self.access is not None and self._past() >= self._next_expiry:
                await self._tell(without_expired(self.access, self._past()))
            with contextlib.suppress(StoreError):
                if self._seen is None or await self._ask(self._generation) != self._seen:
                    await self._read()

    def _past(self) -> float:
        """Keys that had expired by then are forgotten now."""
        return time.time() - self._patience.expired_s

    async def _read(self, timeout_s: float | None = None) -> None:
        await self._take(await self._ask(self._everything, timeout_s))

    def _everything(self) -> Access:
        self._generation()
        return self._store.access(self._past())

    def _generation(self) -> int:
        self._open()
        return self._store.generation()

    def _open(self) -> None:
        """Open the store, unless it is."""
        found = self._found()
        if found != self._prepared:
            self._store.close()
            known = self._snapshot.exists() and holds_something(self._access)
            self._store.prepare(refuse_empty=self._begin_anew if known else "")
            self._prepared = self._found()
            self._seen = None  # another file's generations mean something else

    def _found(self) -> tuple[int, int]:
        """Which file is there now.

        A file that is gone must not be replaced by an empty one while there is a snapshot of what was in it. One that
        lies where another one was has to be opened anew: what is written into the old one is lost.
        """
        if self._file is None:
            return 0, 0
        try:
            found = self._file.stat()
        except FileNotFoundError as error:
            if self._snapshot.exists():
                raise StoreDown(f"the store ({self._file}) is gone", hint=self._begin_anew) from error
            return 0, 0
        return found.st_dev, found.st_ino

    async def _take(self, fresh: Access) -> None:
        """Take in what was just read of the store."""
        last = self._access
        if last is not None and last.salt and last.salt != fresh.salt:
            get_logger(__name__).warning("this is not the database of tenants and keys that was there before")
        self._seen = fresh.generation
        await self._tell(still_required(fresh, last))

    async def _tell(self, access: Access) -> None:
        """Publish it, unless gateways know it already, and keep the snapshot at what is published."""
        if not self._published or self._access is None or not same(access, self._access):
            generation = next_generation(self._access, time.time())
            self._access = msgspec.structs.replace(access, generation=generation)
            self._published = self._unsaved = True
            self._next_expiry = min((key.expires for key in access.keys if key.expires is not None), default=math.inf)
            await self._publish(self._access)
        if self._unsaved and self._access is not None:
            await self._save(self._access)

    async def _save(self, access: Access) -> None:
        """A snapshot that cannot be written is tried again at the next look: the old one may hold a revoked key."""
        try:
            await asyncio.to_thread(write_snapshot, self._snapshot, access)
        except OSError as error:
            get_logger(__name__).warning("the snapshot of the keys cannot be written", error=error)
        else:
            self._unsaved = False

    async def _ask(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """Call the store, and note whether it is there."""
        try:
            result = await self._worker.call(work, timeout_s)
        except StoreError as error:
            if not isinstance(error, StoreMissing | StoreConflict):
                self._note_down(f"{error}; {error.hint}" if error.hint else str(error))
            raise
        self._note_up()
        return result

    def _note_down(self, words: str) -> None:
        if self._down is None:
            get_logger(__name__).warning("tenants and keys cannot be changed", error=words)
        since = time.time() if self._down is None else self._down[0]
        self._down = since, words
        self._seen = None  # when it is back, it may be another one, or an older one

    def _note_up(self) -> None:
        if self._down is not None:
            lasted = format_duration(max(0.0, time.time() - self._down[0]))
            get_logger(__name__).info("the store answers again", after=lasted)
        self._down = None
