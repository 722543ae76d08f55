"""The admin API's operations on tenants and keys. What a wish means is in `keyring`; here it is carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tuneplex.control.bodies import (
    KeyChange,
    KeyInfo,
    KeyRotation,
    KeyWish,
    NewKey,
    TenantChange,
    TenantInfo,
    TenantWish,
)
from tuneplex.control.keyring import Terms, changed_key, changed_tenant, key_terms, new_tenant, rotation
from tuneplex.control.operations import Call, Operation, Query
from tuneplex.control.registry import Records, Registry
from tuneplex.control.telling import tells_fields, tells_key, tells_tenant
from tuneplex.errors import StoreMissing
from tuneplex.identity import DEFAULT_TENANT, Key, KeyState, Tenant
from tuneplex.log import get_logger
from tuneplex.records import mint

__all__ = ["identity_operations"]

_DOWN = 503
_READ = (400, 404, _DOWN)
_WRITE = (400, 404, 409, _DOWN)


def identity_operations(registry: Registry, currency: Callable[[], str]) -> tuple[Operation, ...]:
    """All operations on tenants and keys.

    Args:
        registry: Where they are kept.
        currency: Of the fleet's prices; empty while nothing has a price.
    """
    return (*_tenant_operations(_Tenants(registry, currency)), *_key_operations(_Keys(registry, currency)))


def _tenant_operations(tenants: _Tenants) -> tuple[Operation, ...]:
    one = "/tenants/{name}"
    revoke = Query("revoke", "1: revoke its keys first.", flag=True)
    return (
        Operation("GET", "/tenants", "listTenants", "All tenants, by name.", tenants.listed,
                  answer=tuple[TenantInfo, ...], errors=(400, _DOWN)),
        Operation("POST", "/tenants", "createTenant", "Make a tenant.", tenants.made,
                  body=TenantWish, answer=TenantInfo, status=201, errors=(400, 409, _DOWN), tells=tells_tenant),
        Operation("GET", one, "getTenant", "One tenant.", tenants.shown, answer=TenantInfo, errors=_READ),
        Operation("PATCH", one, "changeTenant", "Change a tenant; what is not given stays.", tenants.changed,
                  body=TenantChange, answer=TenantInfo, errors=(400, 404, _DOWN), tells=tells_fields),
        Operation("DELETE", one, "removeTenant", "Remove a tenant that has no active key, and its keys with it.",
                  tenants.removed, status=204, errors=_WRITE, query=(revoke,)),
    )  # fmt: skip


def _key_operations(keys: _Keys) -> tuple[Operation, ...]:
    queries = (
        Query("tenant", "Only the keys of this tenant."),
        Query("all", "1: also keys that are expired or revoked.", flag=True),
    )
    return (
        Operation("GET", "/keys", "listKeys", "The active keys, oldest first.", keys.listed,
                  answer=tuple[KeyInfo, ...], errors=_READ, query=queries),
        Operation("POST", "/keys", "createKey", "Make a key; its secret is told this once.", keys.made,
                  body=KeyWish, answer=NewKey, status=201, errors=_WRITE, tells=tells_key),
        Operation("GET", "/keys/{id}", "getKey", "One key.", keys.shown, answer=KeyInfo, errors=_READ),
        Operation("PATCH", "/keys/{id}", "changeKey", "Change an active key; what is not given stays.", keys.changed,
                  body=KeyChange, answer=KeyInfo, errors=_WRITE, tells=tells_fields),
        Operation("POST", "/keys/{id}/rotate", "rotateKey", "Make a key in the place of an active one, which goes on "
                  "for a while.", keys.rotated, body=KeyRotation, answer=NewKey, status=201, errors=_WRITE,
                  tells=tells_key),
        Operation("POST", "/keys/{id}/revoke", "revokeKey", "From now on the key opens nothing. Doing it again "
                  "changes nothing.", keys.revoked, answer=KeyInfo, errors=_READ),
    )  # fmt: skip


class _Tenants:
    """The operations on tenants."""

    def __init__(self, registry: Registry, currency: Callable[[], str]) -> None:
        self._registry = registry
        self._currency = currency

    async def listed(self, _call: Call) -> tuple[TenantInfo, ...]:
        return tuple(map(self._info, await self._registry.read(lambda store: store.tenants())))

    async def shown(self, call: Call) -> TenantInfo:
        return self._info(await self._registry.read(lambda store: _tenant(store, call.path["name"])))

    async def made(self, call: Call) -> TenantInfo:
        tenant = new_tenant(call.body, int(time.time()), self._currency())
        await self._registry.change(f"making tenant {tenant.name}", lambda store: store.add_tenant(tenant))
        _log(call, "made tenant", tenant.name)
        return self._info(tenant)

    async def changed(self, call: Call) -> TenantInfo:
        name = call.path["name"]

        def change(store: Records) -> Tenant:
            return store.change_tenant(name, lambda tenant: changed_tenant(tenant, call.body, self._currency()))

        tenant = await self._registry.change(f"changing tenant {name}", change)
        _log(call, "changed tenant", tenant.name, msgspec.json.encode(call.body).decode())
        return self._info(tenant)

    async def removed(self, call: Call) -> None:
        name, revoke = call.path["name"], call.flag("revoke")

        def remove(store: Records) -> None:
            now = int(time.time())
            active = [key for key in store.keys(name) if key.state(now) is KeyState.ACTIVE]
            if revoke and name != DEFAULT_TENANT:  # that one stays, and so must its keys
                for key in active:
                    store.revoke_key(key.id, now)
            store.remove_tenant(name)

        await self._registry.change(f"removing tenant {name}", remove)
        _log(call, "removed tenant", name)

    def _info(self, tenant: Tenant) -> TenantInfo:
        return TenantInfo.of(tenant, self._currency())


class _Keys:
    """The operations on keys."""

    def __init__(self, registry: Registry, currency: Callable[[], str]) -> None:
        self._registry = registry
        self._currency = currency

    async def listed(self, call: Call) -> tuple[KeyInfo, ...]:
        tenant, everything, now = call.query.get("tenant") or None, call.flag("all"), time.time()

        def find(store: Records) -> Sequence[Key]:
            if tenant is not None:
                _tenant(store, tenant)
            return store.keys(tenant)

        found = (self._info(key, now) for key in await self._registry.read(find))
        return tuple(key for key in found if everything or key.state is KeyState.ACTIVE)

    async def shown(self, call: Call) -> KeyInfo:
        key = await self._registry.read(lambda store: store.key(call.path["id"]))
        return self._info(key, time.time())

    async def made(self, call: Call) -> NewKey:
        wish: KeyWish = call.body
        now = int(time.time())
        terms = key_terms(wish, await self._registry.read(lambda store: store.tenants()), now, self._currency())
        return await self._mint(call, terms, now)

    async def changed(self, call: Call) -> KeyInfo:
        key_id, now = call.path["id"], time.time()

        def change(store: Records) -> Key:
            return store.change_key(key_id, lambda key: changed_key(key, call.body, now, self._currency()))

        key = await self._registry.change(f"changing key {key_id}", change)
        _log(call, "changed key", key.id, f"of tenant {key.tenant}", msgspec.json.encode(call.body).decode())
        return self._info(key, now)

    async def rotated(self, call: Call) -> NewKey:
        wish: KeyRotation = call.body
        now = int(time.time())
        old = await self._registry.read(lambda store: store.key(call.path["id"]))
        return await self._mint(call, rotation(old, wish, now), now)

    async def revoked(self, call: Call) -> KeyInfo:
        key_id, now = call.path["id"], int(time.time())
        key = await self._registry.change(f"revoking key {key_id}", lambda store: store.revoke_key(key_id, now))
        _log(call, "revoked key", key.id, f"of tenant {key.tenant}")
        return self._info(key, now)

    async def _mint(self, call: Call, terms: Terms, now: int) -> NewKey:
        key, secret = mint(
            terms.tenant, now, label=terms.label, scopes=terms.scopes, adapters=terms.adapters, base=terms.base,
            expires=terms.expires, replaces=terms.replaces, limits=terms.limits,
        )  # fmt: skip
        ends = None if terms.replaces is None or terms.old_ends is None else (terms.replaces, terms.old_ends)
        await self._registry.change(f"making key {key.id}", lambda store: store.add_key(key, ends=ends))
        instead = "" if ends is None else f", in the place of {ends[0]}, which ends at {ends[1]}"
        scopes = " and ".join(key.scopes)
        _log(call, "made key", key.id, f"of tenant {key.tenant} for {scopes}{instead}")
        return NewKey(self._info(key, now), secret)

    def _info(self, key: Key, now: float) -> KeyInfo:
        return KeyInfo.of(key, now, self._currency())


def _tenant(store: Records, name: str) -> Tenant:
    """One tenant.

    Raises:
        StoreMissing: There is none of this name.
    """
    for tenant in store.tenants():
        if tenant.name == name:
            return tenant
    raise StoreMissing(f"there is no tenant {name!r}")


def _log(call: Call, *words: str) -> None:
    get_logger(__name__).info(" ".join(words), actor=call.actor)
