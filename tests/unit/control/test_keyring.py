"""What wishes make of tenants and keys."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.control.bodies import KeyChange, KeyRotation, KeyWish, LimitsWish, TenantChange, TenantWish
from tuneplex.control.keyring import (
    changed_key,
    changed_tenant,
    holds_something,
    key_terms,
    new_tenant,
    next_generation,
    rotation,
    same,
    still_required,
    without_expired,
)
from tuneplex.errors import BadRequest, StoreConflict
from tuneplex.identity import Access, Key, Limits, Scope, Tenant

ACME = Tenant("acme")
KEY = Key("k1", "acme", "0" * 64, label="laptop", scopes=(Scope.USE, Scope.USAGE), adapters=("a-*",), base=False)
replace = msgspec.structs.replace


def test_a_tenant_is_what_was_wished_for() -> None:
    """Every field of the wish is in the tenant, and the time is that of its making."""
    wish = TenantWish("acme", adapters=("a-*",), base=False, isolated=True, cache_group="shared")
    assert new_tenant(wish, 7) == Tenant("acme", ("a-*",), base=False, isolated=True, cache_group="shared", created=7)


@pytest.mark.parametrize("name", ["acme\n", "", "-acme", "Acme", "a" * 64, "a b"])
def test_names_are_plain(name: str) -> None:
    """A name that the schema lets through by mistake is refused all the same, as a name and as a cache group."""
    with pytest.raises(BadRequest) as caught:
        new_tenant(TenantWish(name), 7)
    assert caught.value.param == "name"
    with pytest.raises(BadRequest) as caught:
        new_tenant(TenantWish("acme", cache_group=name), 7)
    assert caught.value.param == "cache_group"


def test_what_a_change_does_not_give_stays() -> None:
    """Only what is given changes; false and empty values are values."""
    tenant = Tenant("acme", ("a-*",), isolated=True, cache_group="shared", created=7)
    assert changed_tenant(tenant, TenantChange(disabled=True)) == replace(tenant, disabled=True)
    changed = changed_tenant(tenant, TenantChange(adapters=(), isolated=False, cache_group=""))
    assert changed == replace(tenant, adapters=(), isolated=False, cache_group="")


@pytest.mark.parametrize(
    "change", [TenantChange(), TenantChange(cache_group="No Name"), TenantChange(adapters=("a", "\x1b[2J"))]
)
def test_changes_that_make_no_sense(change: TenantChange) -> None:
    """A change of nothing, a group that is no name and a pattern that a terminal would obey are refused."""
    with pytest.raises(BadRequest):
        changed_tenant(ACME, change)


def test_a_key_is_what_was_wished_for() -> None:
    """Every field of the wish is in the terms, and its end counts from now."""
    wish = KeyWish("acme", "laptop", (Scope.USE, Scope.ADMIN), ("a-*",), base=False, expires_in_s=60)
    terms = key_terms(wish, [ACME], 100)
    assert (terms.tenant, terms.label, terms.scopes) == ("acme", "laptop", (Scope.USE, Scope.ADMIN))
    assert (terms.adapters, terms.base, terms.expires) == (("a-*",), False, 160)
    assert (terms.replaces, terms.old_ends) == (None, None)
    assert key_terms(KeyWish("acme"), [ACME], 100).expires is None


@pytest.mark.parametrize(
    "wish, param",
    [
        (KeyWish("nobody"), "tenant"),
        (KeyWish("acme", scopes=()), "scopes"),
        (KeyWish("acme", scopes=(Scope.USE, Scope.USE)), "scopes"),
        (KeyWish("acme", expires_in_s=0), "expires_in_s"),
        (KeyWish("acme", label="a\nb"), "label"),
        (KeyWish("acme", adapters=("a", "b\r")), "adapters[1]"),
    ],
)
def test_keys_that_make_no_sense(wish: KeyWish, param: str) -> None:
    """A wish that makes no sense is refused, and the refusal names the field."""
    with pytest.raises(BadRequest) as caught:
        key_terms(wish, [ACME], 100)
    assert caught.value.param == param


def test_a_rotated_key_is_like_the_old_one() -> None:
    """The new key is for the same as the old one, says which one that was, and lasts as long as is wished."""
    terms = rotation(KEY, KeyRotation(grace_s=10, expires_in_s=1000), 100)
    assert (terms.tenant, terms.label, terms.scopes) == (KEY.tenant, KEY.label, KEY.scopes)
    assert (terms.adapters, terms.base, terms.replaces) == (KEY.adapters, KEY.base, KEY.id)
    assert (terms.expires, terms.old_ends) == (1100, 110)
    assert rotation(KEY, KeyRotation(grace_s=0), 100).old_ends == 100


@given(st.integers(101, 10_000) | st.none(), st.integers(0, 10_000))
def test_a_rotation_never_prolongs_the_old_key(expires: int | None, grace: int) -> None:
    """However long the grace, the old key ends no later than it would have, and no later than the grace says."""
    ends = rotation(replace(KEY, expires=expires), KeyRotation(grace_s=grace), 100).old_ends
    assert ends is not None
    assert ends <= 100 + grace
    assert expires is None or ends <= expires


@pytest.mark.parametrize("old, word", [(replace(KEY, revoked=5), "revoked"), (replace(KEY, expires=100), "expired")])
def test_what_opens_nothing_is_not_rotated(old: Key, word: str) -> None:
    """A key that is revoked or expired is not replaced by one that works."""
    with pytest.raises(StoreConflict, match=word):
        rotation(old, KeyRotation(), 100)


def test_a_rotation_to_nothing_makes_no_sense() -> None:
    """A new key that has expired already is refused."""
    with pytest.raises(BadRequest):
        rotation(KEY, KeyRotation(expires_in_s=0), 100)


def test_expired_keys_drop_out() -> None:
    """Keys drop out at the second at which they expire; where none does, the value is the same one."""
    access = Access(1, keys=(KEY, replace(KEY, id="k2", expires=100)))
    assert without_expired(access, 99.9) is access
    assert without_expired(access, 100.0).keys == (KEY,)


def test_keys_are_asked_for_for_ever() -> None:
    """A database that has never had a key does not open a fleet that has."""
    assert still_required(Access(), Access(required=True)).required
    assert still_required(Access(required=True), None).required
    assert not still_required(Access(), Access()).required
    assert not still_required(Access(), None).required


@given(st.integers(0, 10**13), st.floats(0, 4e9))
def test_generations_grow_whatever_the_clock_does(last: int, now: float) -> None:
    """A next generation is above the last one, and it is never below what the clock says."""
    assert next_generation(Access(last), now) > last
    assert next_generation(None, now) == int(now * 1000)


def test_sameness_is_not_a_matter_of_generations() -> None:
    """Two values that say the same are the same, and two that do not are not."""
    assert same(Access(1, salt="x"), Access(2, salt="x"))
    assert not same(Access(1, salt="x"), Access(1, salt="y"))


def test_what_an_empty_store_would_lose() -> None:
    """A key that was ever made, or a tenant beside the one that is always there."""
    assert holds_something(Access(required=True))
    assert holds_something(Access(tenants=(Tenant("acme"), Tenant("default"))))
    assert not holds_something(Access(tenants=(Tenant("default"),)))
    assert not holds_something(None)


def test_limits_are_set_changed_and_removed() -> None:
    """A limit that is not given stays, and nothing in its place removes it; a new key has those of the one before."""
    tenant = new_tenant(TenantWish("acme", limits=LimitsWish(requests_per_minute=5, concurrent=None)), 7)
    assert tenant.limits == Limits(requests_per_minute=5)
    wish = LimitsWish(requests_per_minute=None, tokens_per_day=9)
    assert changed_tenant(tenant, TenantChange(limits=wish)).limits == Limits(tokens_per_day=9)
    terms = key_terms(KeyWish("acme", limits=LimitsWish(concurrent=2)), [ACME], 100)
    assert terms.limits == Limits(concurrent=2)
    key = changed_key(KEY, KeyChange(limits=LimitsWish(tokens_per_minute=3)), 100)
    assert key == replace(KEY, limits=Limits(tokens_per_minute=3))
    assert rotation(key, KeyRotation(), 100).limits == key.limits


def test_a_key_changes_in_what_is_given() -> None:
    """Label, models and base change; whose it is and what it is for do not."""
    changed = changed_key(KEY, KeyChange(label="", adapters=(), base=True), 100)
    assert changed == replace(KEY, label="", adapters=(), base=True)


@pytest.mark.parametrize(
    "change", [KeyChange(), KeyChange(limits=LimitsWish()), KeyChange(label="a\nb"), KeyChange(adapters=("\r",))]
)
def test_changes_of_a_key_that_make_no_sense(change: KeyChange) -> None:
    """A change of nothing, and what a terminal would obey, are refused."""
    with pytest.raises(BadRequest):
        changed_key(KEY, change, 100)


@pytest.mark.parametrize("old", [replace(KEY, revoked=5), replace(KEY, expires=100)])
def test_what_opens_nothing_stays_as_it_is(old: Key) -> None:
    """A key that is revoked or expired does not change any more."""
    with pytest.raises(StoreConflict, match="stays as it is"):
        changed_key(old, KeyChange(label="new"), 100)
