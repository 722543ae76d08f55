"""The versions of adapters between a fleet file, a store that comes and goes, and a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.support.records import MemoryRecords
from tuneplex.control.catalog import Catalog
from tuneplex.control.registry import Records
from tuneplex.control.versions import added, promoted, rolled_back, tried
from tuneplex.errors import StoreConflict, StoreDown, StoreError
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord, Rollout
from tuneplex.types import AdapterVersion, Base, FleetSpec, PoolSpec

T = TypeVar("T")
replace = msgspec.structs.replace
BASE = Base("base", "/models/base")


def version(name: str, digest: str = "a") -> AdapterVersion:
    """A version whose digest is one letter, repeated."""
    return AdapterVersion(name, digest * 64, f"/adapters/{name}-{digest}", 8, "default")


ONE, TWO, THREE, AMY = version("one"), version("one", "b"), version("one", "c"), version("amy")


def fleet(*adapters: AdapterVersion, name: str = "fleet") -> FleetSpec:
    """A fleet of one pool."""
    return FleetSpec(name, BASE, adapters, pools=(PoolSpec("default"),))


class Told:
    """A fleet that remembers what it was told."""

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self.specs: list[FleetSpec] = []

    def apply(self, spec: FleetSpec) -> None:
        """Remember it."""
        self.spec = spec
        self.specs.append(spec)

    follow_versions = apply

    def has(self) -> tuple[AdapterVersion, ...]:
        """What requests get."""
        return self.spec.adapters


class Reads:
    """The store, which something can happen before each time that it is asked.

    Attributes:
        before: Called before; awaited, if it is a coroutine.
    """

    def __init__(self, store: MemoryRecords) -> None:
        self._store = store
        self.before: Callable[[], None] = lambda: None

    async def read(self, work: Callable[[Records], T]) -> T:
        """Ask it, after others had their turn."""
        await asyncio.sleep(0)
        self.before()
        return work(self._store)


class Shop:
    """A catalog with all that is around it."""

    def __init__(self, memory: MemoryRecords, snapshot: Path, spec: FleetSpec) -> None:
        self.memory = memory
        self.fleet = Told(spec)
        self.reads = Reads(memory)
        self.acted: list[AdapterEvent] = []
        self.catalog = Catalog(self.fleet, self.reads, snapshot, self._note)

    async def _note(self, event: AdapterEvent) -> None:
        self.acted.append(event)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open it, and follow the store while the block runs."""
        self.catalog.open()
        task = asyncio.create_task(self.catalog.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the catalog tells nobody
                await asyncio.sleep(0.005)

    @property
    def kept(self) -> dict[str, str]:
        """What the store says that requests get, by name."""
        down, self.memory.down = self.memory.down, False
        found = {record.name: record.promoted[:1] for record in self.memory.adapters("fleet")}
        self.memory.down = down
        return found


@pytest.fixture
def memory() -> MemoryRecords:
    """A store that fails as it is told."""
    return MemoryRecords()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for the store often."""
    monkeypatch.setattr("tuneplex.control.catalog._PAUSE_S", 0.01)


@pytest.fixture
def open_shop(memory: MemoryRecords, tmp_path: Path) -> Callable[..., Shop]:
    """Make catalogs on the same store and the same snapshot, as one control after the other does."""
    return lambda *adapters, **fields: Shop(memory, tmp_path / "versions", fleet(*adapters, **fields))


OpenShop = Callable[..., Shop]


def rolling(content: AdapterVersion) -> Callable[[AdapterRecord | None], AdapterChange]:
    """Roll a version out."""
    return lambda record: added(record, content, Rollout(content.digest, 5, "local"))


def promoting(content: AdapterVersion, who: str = "local") -> Callable[[AdapterRecord | None], AdapterChange]:
    """Promote a version."""

    def change(record: AdapterRecord | None) -> AdapterChange:
        assert record is not None
        return promoted(record, content.digest, 6, who, "so")

    return change


async def test_the_file_reaches_the_store(open_shop: OpenShop) -> None:
    """A fleet whose file has been the only word so far is told nothing new, and the store knows it afterwards."""
    shop = open_shop(ONE, AMY)
    async with shop.running():
        await shop.until(lambda: shop.kept == {"one": "a", "amy": "a"})
        assert shop.fleet.specs == []
        assert {event.adapter for event in await shop.catalog.events()} == {"one", "amy"}


async def test_what_the_file_says_holds_at_once_and_reaches_the_store_later(
    open_shop: OpenShop, memory: MemoryRecords
) -> None:
    """While the store is down the fleet follows the file, file by file; then the store hears the last of them."""
    memory.down = True
    shop = open_shop(ONE, AMY)
    async with shop.running():
        shop.catalog.apply(fleet(TWO, AMY))
        assert shop.fleet.has() == (TWO, AMY)
        shop.catalog.apply(fleet(THREE))
        assert shop.fleet.has() == (THREE,)
        assert set(shop.catalog.records) == {"one"}
        assert shop.kept == {}
        memory.down = False
        await shop.until(lambda: shop.kept)
        assert shop.kept == {"one": "c"}
        assert [event.version for event in await shop.catalog.events()] == [THREE.id]
        assert shop.fleet.has() == (THREE,)


async def test_a_change_waits_for_the_store(open_shop: OpenShop, memory: MemoryRecords) -> None:
    """While it is down nothing is changed by hand; afterwards it is the store that hears of it first."""
    shop = open_shop(ONE)
    async with shop.running():
        await shop.until(lambda: shop.kept)
        memory.down = True
        with pytest.raises(StoreDown):
            await shop.catalog.change("one", rolling(TWO))
        with pytest.raises(StoreDown):
            await shop.catalog.events()
        assert (shop.fleet.specs, shop.catalog.records["one"].rollout) == ([], None)
        memory.down = False
        record = await shop.catalog.change("one", rolling(TWO))
        assert record is not None
        assert record.rollout is not None
        assert memory.adapters("fleet") == (record,) == (shop.catalog.records["one"],)
        assert [one.version for one in shop.fleet.spec.candidates] == [TWO]
        await shop.catalog.change("one", promoting(TWO))
        assert (shop.fleet.has(), shop.fleet.spec.candidates) == ((TWO,), ())


async def test_the_first_change_brings_the_file_to_the_store_first(open_shop: OpenShop) -> None:
    """Also before anything else has asked the store: the version before is one to go back to."""
    shop = open_shop(ONE)
    shop.catalog.open()
    await shop.catalog.change("one", rolling(TWO))
    await shop.catalog.change("one", promoting(TWO))
    record = await shop.catalog.change("one", lambda one: rolled_back(one or AdapterRecord("one"), 9, "local"))
    assert record is not None
    assert (record.promoted, shop.fleet.has()) == (ONE.digest, (ONE,))
    told = [(event.action, event.version) for event in await shop.catalog.events("one")]
    assert told == [("promoted", ONE.id), ("added", TWO.id), ("promoted", TWO.id), ("promoted", ONE.id)]


async def test_a_refused_change_changes_nothing(open_shop: OpenShop, memory: MemoryRecords) -> None:
    """The reason comes back as it is, and the catalog goes on."""
    shop = open_shop(ONE)
    async with shop.running():
        await shop.until(lambda: shop.kept)
        with pytest.raises(StoreConflict, match="get already"):
            await shop.catalog.change("one", promoting(ONE))
        assert (shop.fleet.specs, shop.kept) == ([], {"one": "a"})
        await shop.catalog.change("one", rolling(TWO))
        assert memory.adapters("fleet")[0].rollout is not None


async def test_a_change_whose_end_is_not_known_is_looked_up(open_shop: OpenShop, memory: MemoryRecords) -> None:
    """The connection broke after the store had it: who asked is told of a failure, and the fleet follows."""
    shop = open_shop(ONE)
    async with shop.running():
        await shop.until(lambda: shop.kept)
        await shop.catalog.change("one", rolling(TWO))
        memory.cut = True
        with pytest.raises(StoreDown):
            await shop.catalog.change("one", promoting(TWO))
        memory.cut = False
        await shop.until(lambda: shop.fleet.has() == (TWO,))
        assert shop.catalog.records["one"].promoted == TWO.digest


async def test_without_the_store_a_start_goes_by_the_snapshot(open_shop: OpenShop, memory: MemoryRecords) -> None:
    """What was promoted and added by hand is there before anybody has asked the store."""
    first = open_shop(ONE)
    async with first.running():
        await first.catalog.change("one", rolling(TWO))
        await first.catalog.change("one", promoting(TWO))
        await first.catalog.change("amy", rolling(AMY))
    memory.down = True
    shop = open_shop(ONE)
    async with shop.running():
        assert shop.fleet.has() == (TWO,)
        assert [one.version for one in shop.fleet.spec.candidates] == [AMY]
        assert len(shop.fleet.specs) == 1
    changed = open_shop(THREE)
    changed.catalog.open()
    assert changed.fleet.has() == (THREE,)
    assert changed.catalog.records["one"].before == (TWO.digest, ONE.digest)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff\xfe", b'["fleet",[{"name":"\xff"}]]', b'["fleet",[{"promoted":5}]]', b"[]", None]
)
async def test_a_damaged_snapshot_is_as_good_as_none(
    open_shop: OpenShop, memory: MemoryRecords, tmp_path: Path, damage: bytes | None
) -> None:
    """The fleet starts as its file says, goes by the store once that answers, and writes a whole one then."""
    first = open_shop(ONE)
    async with first.running():
        await first.catalog.change("one", rolling(TWO))
        await first.catalog.change("one", promoting(TWO))
    snapshot = tmp_path / "versions"
    snapshot.unlink() if damage is None else snapshot.write_bytes(damage)
    memory.down = True
    shop = open_shop(ONE)
    async with shop.running():
        assert shop.fleet.has() == (ONE,)
        memory.down = False
        await shop.until(lambda: shop.fleet.has() == (TWO,))
    memory.down = True
    again = open_shop(ONE)
    again.catalog.open()
    assert again.fleet.has() == (TWO,)


async def test_the_snapshot_of_another_fleet_is_not_ours(open_shop: OpenShop, memory: MemoryRecords) -> None:
    """A state directory may have been another fleet's before, whose adapters have the same names."""
    first = open_shop(ONE)
    async with first.running():
        await first.catalog.change("one", rolling(TWO))
        await first.catalog.change("one", promoting(TWO))
    memory.down = True
    other = open_shop(ONE, name="other")
    other.catalog.open()
    assert (other.fleet.has(), other.fleet.specs) == ((ONE,), [])


async def test_after_a_start_the_store_has_the_last_word(
    open_shop: OpenShop, memory: MemoryRecords, tmp_path: Path
) -> None:
    """An older snapshot only counts until it answers; what the file says anew counts more than both."""
    first = open_shop(ONE)
    async with first.running():
        await first.until(lambda: first.kept)
        old = (tmp_path / "versions").read_bytes()
        await first.catalog.change("one", rolling(TWO))
        await first.catalog.change("one", promoting(TWO))
        await first.catalog.change("amy", rolling(AMY))
    (tmp_path / "versions").write_bytes(old)
    memory.down = True
    shop = open_shop(ONE)
    async with shop.running():
        assert (shop.fleet.has(), shop.fleet.spec.candidates) == ((ONE,), ())
        memory.down = False
        await shop.until(lambda: shop.fleet.has() == (TWO,))
        assert [one.version for one in shop.fleet.spec.candidates] == [AMY]
    anew = open_shop(THREE)
    async with anew.running():
        assert anew.fleet.has() == (THREE,)
        await anew.until(lambda: anew.kept == {"one": "c", "amy": ""})
        assert anew.fleet.has() == (THREE,)


async def test_a_file_that_comes_while_the_store_is_asked_is_not_forgotten(open_shop: OpenShop) -> None:
    """What it says holds from then on without a moment of the file before, and reaches the store."""
    shop = open_shop(ONE, AMY)
    files = [fleet(TWO), fleet(THREE, AMY), fleet(TWO)]

    def another() -> None:
        if files:
            shop.catalog.apply(files.pop(0))

    shop.reads.before = another
    async with shop.running():
        await shop.until(lambda: not files and shop.kept == {"one": "b"})
        assert shop.fleet.has() == (TWO,)
    assert [spec.adapters for spec in shop.fleet.specs] == [(TWO,), (THREE, AMY), (TWO,)]


async def test_a_store_that_goes_in_between_takes_nothing_away(open_shop: OpenShop, memory: MemoryRecords) -> None:
    """It told what it knows and was gone before it could hear: what the file says is known all the same."""
    shop = open_shop(ONE, AMY)
    asked = 0

    def gone() -> None:
        nonlocal asked
        asked += 1
        memory.down = asked > 1

    shop.reads.before = gone
    async with shop.running():
        await shop.until(lambda: asked > 2)
        assert {name: record.promoted for name, record in shop.catalog.records.items()} == {
            "one": ONE.digest,
            "amy": AMY.digest,
        }
        assert shop.fleet.has() == (ONE, AMY)


async def test_what_tuneplex_does_by_itself_is_told_on(open_shop: OpenShop) -> None:
    """Not what somebody has asked for or the file says: the request for that is written down elsewhere."""
    shop = open_shop(ONE)
    async with shop.running():
        await shop.catalog.change("one", rolling(TWO))
        await shop.catalog.change("one", lambda record: tried(record or AdapterRecord("one"), 7.5, "well"))
        await shop.catalog.change("one", promoting(TWO, "tuneplex"))
    assert [(event.action, event.version) for event in shop.acted] == [("trial", TWO.id), ("promoted", TWO.id)]


async def test_changes_at_the_same_time_come_one_after_the_other(open_shop: OpenShop) -> None:
    """Each sees what the one before has made, and the history has them in that order."""
    shop = open_shop()
    versions = [replace(ONE, digest=f"{number:064x}") for number in range(10)]
    seen: list[int] = []

    def change(content: AdapterVersion) -> Callable[[AdapterRecord | None], AdapterChange]:
        def made(record: AdapterRecord | None) -> AdapterChange:
            seen.append(0 if record is None else len(record.versions))
            known, _events = added(record, content, Rollout(content.digest, 5, "local"))
            assert known is not None
            return promoted(known, content.digest, 6, "local", "")

        return made

    async with shop.running():
        await asyncio.gather(*(shop.catalog.change("one", change(content)) for content in versions))
        assert seen == list(range(10))
        assert [event.version for event in await shop.catalog.events()] == [content.id for content in versions]


async def test_a_snapshot_that_cannot_be_written_stops_nothing(
    memory: MemoryRecords, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said in the log, and the fleet follows."""
    shop = Shop(memory, tmp_path / "no such directory" / "versions", fleet(ONE))
    async with shop.running():
        await shop.catalog.change("one", rolling(TWO))
        with contextlib.suppress(StoreError):
            await shop.catalog.change("one", promoting(TWO))
        assert shop.fleet.has() == (TWO,)
    assert "the versions of adapters cannot be written down" in caplog.text
