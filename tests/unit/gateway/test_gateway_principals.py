"""Who the callers can be, worked out from keys and tenants."""

from __future__ import annotations

import gc
from hashlib import sha256

import pytest

from tuneplex.gateway.principals import principals
from tuneplex.identity import Access, Grant, Key, Limits, Principal, Scope, Subject, Tenant
from tuneplex.types import GatewaySettings

NO_FILE_KEY = GatewaySettings()
FILE_KEY = GatewaySettings(key_sha256="f" * 64)
DEFAULT = Tenant("default")


def key(name: str, tenant: str = "default", **fields: object) -> Key:
    """A key whose digest is that of its name."""
    return Key(name, tenant, sha256(name.encode()).hexdigest(), **fields)  # type: ignore[arg-type]


def only(access: Access, settings: GatewaySettings = NO_FILE_KEY) -> Principal:
    """The one principal that has a key."""
    (principal,) = principals(settings, access).keyed.values()
    return principal


def test_a_key_and_its_tenant_make_a_principal() -> None:
    """What both allow is what may be called; what the key says of itself is taken as it is."""
    tenant = Tenant("acme", adapters=("a*",), base=True, isolated=True)
    given = key("k1", "acme", scopes=(Scope.USE, Scope.ADMIN), adapters=("*-v2",), base=False, expires=9)
    assert only(Access(tenants=(DEFAULT, tenant), keys=(given,))) == Principal(
        tenant="acme",
        key_id="k1",
        scopes=(Scope.USE, Scope.ADMIN),
        grant=Grant((("a*",), ("*-v2",)), base=False),
        isolated=True,
        expires=9,
    )


def test_patterns_that_match_everything_are_not_kept() -> None:
    """Equal grants are one value, so that pages made for one principal serve the others."""
    known = principals(NO_FILE_KEY, Access(tenants=(DEFAULT,), keys=(key("k1"), key("k2"))))
    first, second = known.keyed.values()
    assert first.grant == Grant()
    assert first.grant is second.grant


@pytest.mark.parametrize(
    "tenant, given",
    [
        (Tenant("acme", disabled=True), key("k1", "acme")),
        (Tenant("acme"), key("k1", "zeta")),
        (Tenant("acme"), key("k1", "acme", revoked=1)),
    ],
    ids=["disabled", "of no tenant", "revoked"],
)
def test_keys_that_open_nothing(tenant: Tenant, given: Key) -> None:
    """Keys of a disabled tenant, of no tenant at all, or revoked ones are as unknown as any other text."""
    known = principals(NO_FILE_KEY, Access(tenants=(DEFAULT, tenant), keys=(given,)))
    assert known.keyed == {}
    assert known.anybody is None


@pytest.mark.parametrize(
    "settings, access",
    [
        (NO_FILE_KEY, Access(required=True, tenants=(DEFAULT,))),
        (NO_FILE_KEY, Access(tenants=(DEFAULT,), keys=(key("k1"),))),
        (FILE_KEY, Access(tenants=(DEFAULT,))),
        (GatewaySettings(require_key=True), Access(tenants=(DEFAULT,))),
        (NO_FILE_KEY, Access(tenants=(Tenant("default", disabled=True),))),
    ],
    ids=["a key was made once", "a key", "the file's key", "the file says so", "the default tenant is disabled"],
)
def test_nobody_calls_without_a_key_where_one_is_needed(settings: GatewaySettings, access: Access) -> None:
    """One reason is enough, and a disabled tenant's doors are shut for those without a key too."""
    assert principals(settings, access).anybody is None


def test_who_needs_no_key_is_the_default_tenant() -> None:
    """An open fleet's callers may do what the default tenant may, use it and nothing else, and share its caches."""
    known = principals(NO_FILE_KEY, Access(salt="s", tenants=(Tenant("default", adapters=("a*",), base=False),)))
    assert known.anybody == Principal("default", "none", grant=Grant((("a*",),), base=False))
    assert principals(NO_FILE_KEY, Access()).anybody == Principal("default", "none")


def test_the_fleet_files_own_key_goes_on() -> None:
    """It is a key of the default tenant, to use the fleet and read its usage, besides all keys of the store."""
    access = Access(required=True, tenants=(DEFAULT, Tenant("acme")), keys=(key("k1", "acme"),))
    known = principals(FILE_KEY, access)
    assert known.keyed["f" * 64] == Principal("default", "fleet-file", scopes=(Scope.USE, Scope.USAGE))
    assert len(known.keyed) == 2
    shut = principals(FILE_KEY, Access(tenants=(Tenant("default", disabled=True),)))
    assert shut.keyed == {}


def test_a_key_of_the_store_counts_before_the_same_one_in_the_file() -> None:
    """Whoever writes a restricted key into the fleet file does not lift its restrictions."""
    given = key("k1", adapters=("a*",))
    principal = only(Access(tenants=(DEFAULT,), keys=(given,)), GatewaySettings(key_sha256=given.sha256))
    assert (principal.key_id, principal.grant) == ("k1", Grant((("a*",),)))


def salt(tenant: Tenant, below: str = "salt") -> str:
    """The salt of a tenant's only key."""
    return only(Access(salt=below, tenants=(tenant,), keys=(key("k1", tenant.name),))).cache_salt


def test_salts_keep_tenants_apart() -> None:
    """Each tenant and each cache group has its own, the same for ever, which nobody can tell without the secret."""
    acme, zeta = Tenant("acme"), Tenant("zeta")
    together = Tenant("acme", cache_group="both"), Tenant("zeta", cache_group="both")
    named_alike = Tenant("both"), Tenant("x", cache_group="acme")
    assert salt(acme) == salt(acme)
    assert salt(together[0]) == salt(together[1])
    different = {salt(one) for one in (acme, zeta, together[0], *named_alike)} | {salt(acme, "other")}
    assert len(different) == 6
    assert all(len(one) == 43 and one.isascii() and not set(one) & set("@/\\\0") for one in different)
    assert salt(acme, "") == ""


def test_those_with_limits_are_subjects() -> None:
    """A tenant's limits are one subject for all of its keys, a key's own are another, and no limits are none."""
    acme = Tenant("acme", limits=Limits(concurrent=3))
    keys = key("k1", "acme"), key("k2", "acme", limits=Limits(tokens_per_day=9)), key("k3")
    first, second, third = principals(NO_FILE_KEY, Access(tenants=(DEFAULT, acme), keys=keys)).keyed.values()
    assert first.subjects == (Subject("tenant acme", acme.limits),)
    assert second.subjects == (*first.subjects, Subject("key k2", keys[1].limits))
    assert second.subjects[0] is first.subjects[0]
    assert third.subjects == ()
    anybody = principals(NO_FILE_KEY, Access(tenants=(Tenant("default", limits=acme.limits),))).anybody
    assert anybody is not None
    assert anybody.subjects == (Subject("tenant default", acme.limits),)


def test_the_garbage_collector_does_not_look_at_keys() -> None:
    """It would stop all streams for as long as it looks at a hundred thousand of them."""
    made = key("k1", "acme", limits=Limits(concurrent=1))
    found = principals(GatewaySettings(), Access(keys=(made,), tenants=(Tenant("acme"),))).keyed[made.sha256]
    assert not any(map(gc.is_tracked, (made, made.limits, found, found.grant, *found.subjects)))
