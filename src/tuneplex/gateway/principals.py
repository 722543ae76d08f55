"""Who the callers can be: all that can be worked out once for each change of keys, and not for each request."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tuneplex.engines.salt import derive
from tuneplex.identity import ANY, DEFAULT_TENANT, Access, Grant, Key, Limits, Principal, Scope, Subject, Tenant
from tuneplex.types import GatewaySettings

__all__ = ["FLEET_FILE", "NO_KEY", "Principals", "principals", "subjects"]

FLEET_FILE = "fleet-file"
NO_KEY = "none"

_NO_LIMITS = Limits()


class Principals(msgspec.Struct, frozen=True):
    """Everybody who may call.

    Attributes:
        keyed: By the hex SHA-256 digest of the key.
        anybody: Who calls without a key; None where a key is needed.
    """

    keyed: dict[str, Principal] = {}
    anybody: Principal | None = None


def principals(settings: GatewaySettings, access: Access) -> Principals:
    """Everybody who may call, by the keys of the store and the fleet file's own one."""
    tenants = {tenant.name: tenant for tenant in access.tenants}
    tenants.setdefault(DEFAULT_TENANT, Tenant(DEFAULT_TENANT))
    usable = {name: tenant for name, tenant in tenants.items() if not tenant.disabled}
    keys = (*_own(settings), *access.keys)
    needed = access.required or settings.require_key or bool(keys)
    return Principals(
        keyed=_keyed(usable, keys, access.salt),
        anybody=None if needed or DEFAULT_TENANT not in usable else _anybody(usable[DEFAULT_TENANT]),
    )


def _own(settings: GatewaySettings) -> tuple[Key, ...]:
    """The fleet file's own key, which no store knows."""
    if settings.key_sha256 is None:
        return ()
    return (Key(FLEET_FILE, DEFAULT_TENANT, settings.key_sha256, scopes=(Scope.USE, Scope.USAGE)),)


def _anybody(tenant: Tenant) -> Principal:
    """Who needs no key. There is nobody else, so there are no prompts to keep apart."""
    return Principal(
        tenant.name,
        NO_KEY,
        grant=_grant(tenant),
        isolated=tenant.isolated,
        subjects=_of_tenant(tenant),
        weight=tenant.weight,
        recorded=tenant.recorded,
    )


def _keyed(tenants: dict[str, Tenant], keys: Iterable[Key], salt: str) -> dict[str, Principal]:
    salts = {name: _salt(salt, tenant) for name, tenant in tenants.items()}
    owners = {name: _of_tenant(tenant) for name, tenant in tenants.items()}
    grants: dict[Grant, Grant] = {}  # few are different, so that most principals share theirs
    keyed = {}
    for key in keys:
        tenant = tenants.get(key.tenant)
        if tenant is None or key.revoked is not None:
            continue
        grant = _grant(tenant, key)
        keyed[key.sha256] = Principal(
            tenant=tenant.name,
            key_id=key.id,
            scopes=key.scopes,
            grant=grants.setdefault(grant, grant),
            isolated=tenant.isolated,
            cache_salt=salts[tenant.name],
            expires=key.expires,
            subjects=(*owners[tenant.name], *subjects(f"key {key.id}", key.limits)),
            weight=tenant.weight,
            recorded=tenant.recorded,
        )
    return keyed


def subjects(name: str, limits: Limits) -> tuple[Subject, ...]:
    """Somebody or something with limits; nobody if there are none."""
    return () if limits == _NO_LIMITS else (Subject(name, limits),)


def _of_tenant(tenant: Tenant) -> tuple[Subject, ...]:
    return subjects(f"tenant {tenant.name}", tenant.limits)


def _grant(tenant: Tenant, key: Key | None = None) -> Grant:
    """What both the tenant and the key allow; a set of patterns that any name matches needs no checking."""
    sets = (tenant.adapters,) if key is None else (tenant.adapters, key.adapters)
    base = tenant.base and (key is None or key.base)
    return Grant(tuple(patterns for patterns in sets if patterns != ANY), base)


def _salt(salt: str, tenant: Tenant) -> str:
    """The same for all tenants of a cache group, else the tenant's own."""
    if not salt:
        return ""
    return derive(salt, f"group:{tenant.cache_group}" if tenant.cache_group else f"tenant:{tenant.name}")
