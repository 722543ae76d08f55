"""The double of the store, held to the real one: the same steps, the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.records import MemoryRecords
from tuneplex.control.registry import Records
from tuneplex.errors import StoreConflict, StoreMissing
from tuneplex.identity import DEFAULT_TENANT, Key, Limits, Scope, Tenant
from tuneplex.records import Store
from tuneplex.releases import AdapterEvent, AdapterRecord

FAR = 4_000_000_000
DAY = "tokens_per_day"


@pytest.fixture(params=["double", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    """An empty store."""
    made: Records = MemoryRecords() if request.param == "double" else Store(f"sqlite:///{tmp_path / 'store.db'}")
    made.prepare()
    yield made
    made.close()


def key(name: str, tenant: str = "acme", created: int = 1) -> Key:
    """A key."""
    return Key(name, tenant, name * 32, scopes=(Scope.USE,), created=created)


def ids(keys: Iterable[Key]) -> list[str]:
    """Their ids."""
    return [key.id for key in keys]


def test_tenants(store: Records) -> None:
    """Tenants are added once, changed, and removed; the default one stays."""
    acme = Tenant("acme", adapters=("a-*",), created=3)
    assert [tenant.name for tenant in store.tenants()] == [DEFAULT_TENANT]
    before = store.generation()
    store.add_tenant(acme)
    assert store.generation() > before
    with pytest.raises(StoreConflict):
        store.add_tenant(acme)
    changed = store.change_tenant("acme", lambda tenant: msgspec.structs.replace(tenant, disabled=True))
    assert changed == msgspec.structs.replace(acme, disabled=True)
    assert store.tenants()[0] == msgspec.structs.replace(acme, disabled=True)
    store.remove_tenant("acme")
    with pytest.raises(StoreMissing):
        store.remove_tenant("acme")
    with pytest.raises(StoreMissing):
        store.change_tenant("acme", lambda tenant: tenant)
    with pytest.raises(StoreConflict):
        store.remove_tenant(DEFAULT_TENANT)


def test_keys(store: Records) -> None:
    """Keys are added, end when they are replaced or revoked, and go with their tenant."""
    store.add_tenant(Tenant("acme"))
    assert not store.access(5.0).required
    store.add_key(key("k1"))
    store.add_key(key("k2", created=2), ends=("k1", 10))
    assert ids(store.access(5.0).keys) == ["k1", "k2"]
    assert ids(store.access(10.0).keys) == ["k2"]
    store.add_key(key("k3", created=3), ends=("k1", FAR))
    assert store.key("k1").expires == 10
    with pytest.raises(StoreConflict):
        store.remove_tenant("acme")
    assert store.revoke_key("k2", 20).revoked == 20
    assert store.revoke_key("k2", 30).revoked == 20
    store.revoke_key("k3", 20)
    assert ids(store.keys()) == ["k1", "k2", "k3"]
    assert store.keys("nobody") == ()
    assert store.access(30.0).required
    assert store.access(30.0).keys == ()


def test_what_is_not_there(store: Records) -> None:
    """What does not exist is missing, what exists already is a conflict, and neither changes anything."""
    store.add_key(key("k1", DEFAULT_TENANT))
    before = store.generation()
    with pytest.raises(StoreMissing):
        store.key("k9")
    with pytest.raises(StoreMissing):
        store.revoke_key("k9", 1)
    with pytest.raises(StoreMissing):
        store.add_key(key("k2", "nobody"))
    with pytest.raises(StoreMissing):
        store.add_key(key("k2", DEFAULT_TENANT), ends=("k9", 1))
    with pytest.raises(StoreConflict):
        store.add_key(key("k1", DEFAULT_TENANT))
    store.revoke_key("k1", 1)
    changed = store.generation()
    with pytest.raises(StoreConflict):
        store.add_key(key("k2", DEFAULT_TENANT), ends=("k1", 1))
    assert store.generation() == changed > before
    assert ids(store.keys()) == ["k1"]


def test_access_is_of_one_generation(store: Records) -> None:
    """What gateways need carries the generation that the store tells, and the same salt at all times."""
    first = store.access(0.0)
    store.add_tenant(Tenant("acme"))
    second = store.access(0.0)
    assert second.generation == store.generation() > first.generation
    assert second.salt == first.salt != ""


def test_changes_of_keys_and_the_tokens_of_a_day(store: Records) -> None:
    """A key changes in what may change, and the tokens of a day are kept by fleet without a new generation."""
    store.add_key(key("k1", DEFAULT_TENANT))
    changed = msgspec.structs.replace(key("k1", DEFAULT_TENANT), label="new", limits=Limits(concurrent=2))
    before = store.generation()
    assert store.change_key("k1", lambda _key: msgspec.structs.replace(changed, expires=5, created=9)) == changed
    assert store.key("k1") == changed
    assert store.generation() > before
    with pytest.raises(StoreMissing):
        store.change_key("k9", lambda key: key)
    before = store.generation()
    for tokens in (5, 4):
        store.keep_spending("shop", {(DAY, 7, "tenant acme", "a"): tokens, (DAY, 8, "tenant acme", "a"): 1})
    assert store.spending("shop", DAY, 7) == {"tenant acme": {"a": 4}}
    assert store.spending("other", DAY, 7) == {}
    assert store.generation() == before


def test_adapters_and_what_was_done_with_them(store: Records) -> None:
    """Records are kept by fleet and name until they are none; what was done stays, and a failed change leaves all."""
    first, done = (
        AdapterRecord("zoe", promoted="a"),
        [AdapterEvent(at, "zoe", "local", "promoted", "v") for at in (1, 2)],
    )
    before = store.generation()
    assert store.change_adapter("shop", "zoe", lambda record: (first if record is None else record, done[:1])) == first
    assert store.change_adapter("shop", "amy", lambda _record: (AdapterRecord("amy"), ())) == AdapterRecord("amy")
    assert [record.name for record in store.adapters("shop")] == ["amy", "zoe"]
    assert (store.adapters("other"), store.adapter_events("other")) == ((), ())

    def refuse(_record: AdapterRecord | None) -> tuple[None, list[AdapterEvent]]:
        raise StoreConflict("no")

    with pytest.raises(StoreConflict):
        store.change_adapter("shop", "zoe", refuse)
    assert store.change_adapter("shop", "zoe", lambda record: (record, ())) == first
    assert store.change_adapter("shop", "zoe", lambda _record: (None, done[1:])) is None
    assert [record.name for record in store.adapters("shop")] == ["amy"]
    assert store.adapter_events("shop") == store.adapter_events("shop", "zoe") == tuple(done)
    assert store.adapter_events("shop", "amy") == ()
    assert store.adapter_events("shop", limit=1) == (done[1],)
    assert store.generation() == before
