"""The store does the same in both databases."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from tests.integration.records.conftest import MakeStore, MakeUrl
from tuneplex.errors import StoreConflict, StoreError, StoreMissing
from tuneplex.identity import Key, KeyState, Limits, Scope, Tenant
from tuneplex.records import Store, StoreRefused, digest, mint

ACME = Tenant("acme", adapters=("acme-*", "shared"), base=False, isolated=True, cache_group="group", created=7,
              limits=Limits(requests_per_minute=5, tokens_per_day=10**12))  # fmt: skip
replace = msgspec.structs.replace
DAY, MONTH = "tokens_per_day", "money_per_month"


def with_key(store: Store, tenant: str = "acme", now: int = 10, expires: int | None = None) -> Key:
    """A key that was just made, and its tenant if there was none."""
    if tenant not in {found.name for found in store.tenants()}:
        store.add_tenant(Tenant(tenant))
    key, _ = mint(tenant, now, expires=expires)
    store.add_key(key)
    return key


def test_new_store(store: Store) -> None:
    """A new store has the tenant that is always there, no key, a salt, and asks for no key yet."""
    access = store.access(0)
    assert access.tenants == (Tenant("default"),)
    assert (access.keys, access.required) == ((), False)
    assert len(access.salt) == 43
    assert access.generation == store.generation()


def test_salt_stays_and_is_its_own(store: Store, open_store: MakeStore, make_url: MakeUrl) -> None:
    """The salt outlives every change, and no two stores have the same."""
    salt = store.access(0).salt
    with_key(store)
    assert store.access(0).salt == salt
    other = open_store(make_url())
    other.prepare()
    assert other.access(0).salt != salt


def test_preparing_again_changes_nothing(store: Store) -> None:
    """A store that is there is left as it is."""
    with_key(store)
    before = store.access(0)
    store.prepare()
    assert store.access(0) == before


def test_store_that_must_hold_something(url: str, open_store: MakeStore) -> None:
    """An empty database is refused, with what to do, where a store is expected; a store is not."""
    with pytest.raises(StoreRefused, match=r"is (gone|empty)") as refused:
        open_store(url).prepare(refuse_empty="restore it")
    assert refused.value.hint == "restore it"
    open_store(url).prepare()
    open_store(url).prepare(refuse_empty="restore it")


def test_tenant_comes_back_as_it_was(store: Store) -> None:
    """All that a tenant is comes back, and tenants come by name."""
    store.add_tenant(replace(ACME, name="zebra"))
    store.add_tenant(ACME)
    store.add_tenant(replace(ACME, name="Big"))
    assert [tenant.name for tenant in store.tenants()] == ["Big", "acme", "default", "zebra"]
    assert store.tenants()[1] == ACME


def test_key_comes_back_as_it_was(store: Store) -> None:
    """All that a key is comes back, and what clients send is not in the store."""
    store.add_tenant(ACME)
    scopes = (Scope.USE, Scope.ADMIN)
    key, token = mint("acme", 5, label="Größe 世界 'x'", scopes=scopes, adapters=("a*",), base=False, expires=2**40)
    store.add_key(key)
    assert store.key(key.id) == key
    assert store.keys() == store.keys("acme") == (key,)
    assert store.keys("default") == ()
    assert key.sha256 == digest(token)
    assert token.startswith(f"tpx-{key.id}-")
    assert token.removeprefix(f"tpx-{key.id}-") not in repr(store.keys())


def test_keys_come_oldest_first(store: Store) -> None:
    """Keys come in the order in which they were made."""
    made = [with_key(store, now=now) for now in (30, 10, 20)]
    assert store.keys() == (made[1], made[2], made[0])


def test_changed_tenant(store: Store) -> None:
    """A change replaces all but the name, and touches nobody else."""
    store.add_tenant(ACME)
    changed = Tenant("acme", disabled=True)
    assert store.change_tenant("acme", lambda _acme: changed) == changed
    assert store.tenants() == (changed, Tenant("default"))


def test_changes_of_two_fleets_at_a_time(store: Store, url: str, open_store: MakeStore) -> None:
    """Who changes a tenant or a key sees what another fleet has just changed of it, and takes none of that back."""
    store.add_tenant(ACME)
    key, other = with_key(store), open_store(url)
    begun = threading.Event()

    def limited(tenant: Tenant) -> Tenant:
        begun.set()
        time.sleep(0.05)  # so that the other one comes in between, if it can
        return replace(tenant, limits=Limits(concurrent=1))

    def labelled(key: Key) -> Key:
        begun.set()
        time.sleep(0.05)
        return replace(key, label="new")

    with ThreadPoolExecutor() as pool:
        for slow, quick in (
            (lambda: store.change_tenant("acme", limited), lambda: other.change_tenant("acme", disabled)),
            (lambda: store.change_key(key.id, labelled), lambda: other.change_key(key.id, baseless)),
        ):
            begun.clear()
            first: Future[object] = pool.submit(slow)
            begun.wait()
            quick()
            first.result()
    assert store.tenants()[0] == replace(ACME, disabled=True, limits=Limits(concurrent=1))
    assert store.key(key.id) == replace(key, label="new", base=False)


def disabled(tenant: Tenant) -> Tenant:
    """The tenant, disabled."""
    return replace(tenant, disabled=True)


def baseless(key: Key) -> Key:
    """The key, without the base."""
    return replace(key, base=False)


def test_each_change_raises_the_generation(store: Store) -> None:
    """Whoever polls the generation sees every change, and none where there was none."""
    seen = [store.generation()]

    def changed() -> bool:
        seen.append(store.generation())
        return seen[-1] > seen[-2]

    store.add_tenant(ACME)
    assert changed()
    key = with_key(store)
    assert changed()
    store.change_tenant("acme", disabled)
    assert changed()
    store.revoke_key(key.id, 11)
    assert changed()
    store.remove_tenant("acme")
    assert changed()
    assert not changed()


def test_failed_change_leaves_everything(store: Store) -> None:
    """A change that is refused leaves the generation and all rows as they were."""
    key = with_key(store)
    before = store.access(10)
    for wrong in (
        lambda: store.add_tenant(Tenant("acme")),
        lambda: store.add_key(key),
        lambda: store.add_key(mint("nobody", 1)[0]),
        lambda: store.add_key(mint("acme", 1)[0], ends=("nothing", 5)),
        lambda: store.change_tenant("nobody", disabled),
        lambda: store.remove_tenant("acme"),
        lambda: store.remove_tenant("default"),
        lambda: store.revoke_key("nothing", 5),
        lambda: store.add_tenant(Tenant("a\0b")),
    ):
        with pytest.raises(StoreError):
            wrong()
    assert store.access(10) == before


def test_refusals_say_what_is_wrong(store: Store) -> None:
    """What exists already is a conflict, what does not exist is missing, and both are named."""
    key = with_key(store)
    with pytest.raises(StoreConflict, match="there is a tenant 'acme' already"):
        store.add_tenant(Tenant("acme"))
    with pytest.raises(StoreConflict, match=f"there is a key '{key.id}' already"):
        store.add_key(key)
    with pytest.raises(StoreConflict, match="already"):
        store.add_key(replace(key, id="other"))
    with pytest.raises(StoreMissing, match="there is no tenant 'nobody'"):
        store.add_key(mint("nobody", 1)[0])
    with pytest.raises(StoreMissing, match="there is no key 'nothing'"):
        store.key("nothing")
    with pytest.raises(StoreMissing, match="there is no tenant 'nobody'"):
        store.remove_tenant("nobody")
    with pytest.raises(StoreConflict, match="'default' is always there"):
        store.remove_tenant("default")


def test_tenant_with_an_active_key_stays(store: Store) -> None:
    """A tenant goes only once none of its keys opens anything, and its keys go with it."""
    keys = [with_key(store), with_key(store, expires=100)]
    with pytest.raises(StoreConflict, match="the tenant 'acme' has 2 active keys"):
        store.remove_tenant("acme", 50)
    store.revoke_key(keys[0].id, 50)
    with pytest.raises(StoreConflict, match=r"the tenant 'acme' has 1 active key$"):
        store.remove_tenant("acme", 99)
    store.remove_tenant("acme", 100)
    assert store.tenants() == (Tenant("default"),)
    assert store.keys() == ()


def test_access_has_active_keys_only(store: Store) -> None:
    """Gateways are told of keys that open something now, and that keys are asked for, even when none is left."""
    lasting, expiring, revoked = with_key(store), with_key(store, expires=100), with_key(store)
    store.revoke_key(revoked.id, 20)
    assert {key.id for key in store.access(99).keys} == {lasting.id, expiring.id}
    assert {key.id for key in store.access(100).keys} == {lasting.id}
    store.revoke_key(lasting.id, 30)
    assert store.access(100).keys == ()
    assert store.access(100).required


def test_revoking_twice_keeps_the_first_time(store: Store) -> None:
    """A revoked key stays revoked since it first was."""
    key = with_key(store)
    assert store.revoke_key(key.id, 20) == replace(key, revoked=20)
    assert store.revoke_key(key.id, 30).revoked == 20
    assert store.key(key.id).state(0) is KeyState.REVOKED


def test_rotation_ends_the_old_key(store: Store) -> None:
    """A key that replaces another one comes together with the other one's end, which is never put off."""
    old = with_key(store)
    new, _ = mint("acme", 20, replaces=old.id)
    store.add_key(new, ends=(old.id, 100))
    assert (store.key(old.id).expires, store.key(new.id).replaces) == (100, old.id)
    store.add_key(mint("acme", 30)[0], ends=(old.id, 200))
    assert store.key(old.id).expires == 100
    store.add_key(mint("acme", 30)[0], ends=(old.id, 40))
    assert store.key(old.id).expires == 40


def test_revoked_key_is_not_rotated(store: Store) -> None:
    """What was revoked gets no successor."""
    old = with_key(store)
    store.revoke_key(old.id, 11)
    with pytest.raises(StoreConflict, match="is revoked"):
        store.add_key(mint("acme", 20)[0], ends=(old.id, 100))
    assert len(store.keys()) == 1


def test_two_stores_see_each_other(store: Store, url: str, open_store: MakeStore) -> None:
    """What one process changes, another one sees at once."""
    other = open_store(url)
    key = with_key(store)
    assert other.key(key.id) == key
    assert other.generation() == store.generation()


def test_store_opens_again_after_close(store: Store) -> None:
    """A closed store can be used again."""
    store.close()
    assert store.tenants() == (Tenant("default"),)


def test_facts(store: Store) -> None:
    """The store tells how much it holds, and where it is without secrets."""
    with_key(store)
    with_key(store, expires=20)
    facts = store.facts(20)
    assert (facts.tenants, facts.keys, facts.active) == (2, 2, 1)
    assert facts.revision == facts.newest
    assert facts.where == store.where
    assert store.where in repr(store)


def test_facts_of_no_store(url: str, open_store: MakeStore) -> None:
    """An empty database is no store yet, and looking does not make it one."""
    store = open_store(url)
    assert store.facts(0).revision is None
    assert store.facts(0).tenants is None


@pytest.mark.parametrize("wrong", ["mysql://h/d", "postgresql+asyncpg://h/d", "store.db", "", "sqlite://"])
def test_other_databases_are_refused(wrong: str) -> None:
    """Only the two kinds of URLs are taken."""
    with pytest.raises(StoreError, match="URL"):
        Store(wrong)


def test_changed_key(store: Store) -> None:
    """A key's label, what it may call and its limits change; whose it is, its secret and its end do not."""
    key = with_key(store, expires=90)
    before = store.generation()
    limits = Limits(tokens_per_minute=7, concurrent=2)
    changed = replace(key, label="new", adapters=("a",), base=False, limits=limits)
    wrong = replace(changed, tenant="default", sha256="0", created=1, expires=None, revoked=5)
    assert store.change_key(key.id, lambda _key: wrong) == changed
    assert store.key(key.id) == changed
    assert store.generation() > before
    with pytest.raises(StoreMissing):
        store.change_key("nobody", baseless)


def test_what_was_counted_in_a_period(store: Store) -> None:
    """What is kept again takes the place of what was there, and counts once; tenants and keys stay as they were."""
    before = store.generation()
    counted = {(DAY, 100, "tenant acme", "a"): 10, (DAY, 100, "tenant acme", "b"): 5, (DAY, 100, "model sql", "a"): 1}
    for _again in range(2):
        store.keep_spending("shop", counted)
    store.keep_spending("shop", {(DAY, 100, "tenant acme", "a"): 8, (DAY, 101, "tenant acme", "a"): 2**63 - 1})
    store.keep_spending("shop", {(MONTH, 100, "tenant acme", "a"): 3})
    store.keep_spending("shop", {})
    assert store.spending("shop", DAY, 100) == {"tenant acme": {"a": 8, "b": 5}, "model sql": {"a": 1}}
    assert store.spending("shop", DAY, 101) == {"tenant acme": {"a": 2**63 - 1}}
    assert store.spending("shop", MONTH, 100) == {"tenant acme": {"a": 3}}
    assert store.spending("shop", DAY, 99) == store.spending("other", DAY, 100) == {}
    assert store.generation() == before


def test_periods_that_are_over_are_forgotten(store: Store) -> None:
    """A store does not grow for ever with the days, and one day far ahead does not cost the others, or the months."""
    days = [*range(100, 140), 9000]
    store.keep_spending("shop", {(DAY, day, "tenant acme", process): day for day in days for process in "ab"})
    store.keep_spending("shop", {(MONTH, 3, "tenant acme", "a"): 5})
    store.keep_spending("other", {(DAY, 100, "tenant acme", "a"): 1})
    for _again in range(2):
        store.forget_spending("shop")
    kept = [day for day in days if store.spending("shop", DAY, day)]
    assert kept == days[-31:]
    assert store.spending("shop", MONTH, 3) == {"tenant acme": {"a": 5}}
    assert store.spending("other", DAY, 100) == {"tenant acme": {"a": 1}}
