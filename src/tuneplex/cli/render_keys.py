"""What the commands show of tenants and keys: pure functions from values to sheets and lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from tuneplex.cli.render_limits import limits
from tuneplex.cli.terminal import Cell, Sheet
from tuneplex.cli.times import distance, moment
from tuneplex.control.bodies import KeyInfo, TenantInfo
from tuneplex.identity import ANY, KeyState, Scope
from tuneplex.types import FleetSpec

__all__ = ["doubts", "key", "keys", "purpose", "tenant", "tenants"]

_WILD = re.compile(r"[*?\[]")
_STATE_STYLES = {KeyState.ACTIVE: "green", KeyState.EXPIRED: "yellow", KeyState.REVOKED: "red"}


def tenants(found: Iterable[TenantInfo], active: Mapping[str, int]) -> Sheet:
    """One row for each tenant, with how many of its keys are active."""
    return Sheet(
        columns=("TENANT", "MODELS", "POOLS", "CACHE", "LIMITS", "WEIGHT", "RECORDS", "KEYS", "STATE"),
        rows=tuple(_tenant_row(one, active.get(one.name, 0)) for one in found),
        empty="no tenants",
        right=frozenset({"WEIGHT", "KEYS"}),
        flexible=frozenset({"MODELS", "CACHE", "LIMITS"}),
    )


def _tenant_row(found: TenantInfo, active: int) -> tuple[Cell, ...]:
    return (
        Cell(found.name, "bold"),
        Cell(_models(found)),
        Cell("reserved" if found.isolated else ""),
        Cell(found.cache_group),
        Cell(limits(found.limits)),
        Cell(str(found.weight)),
        Cell("required" if found.recorded else ""),
        Cell(str(active)),
        Cell("disabled", "red") if found.disabled else Cell("active", "green"),
    )


def tenant(found: TenantInfo) -> Sheet:
    """All about one tenant."""
    group = f"shared with the tenants of the group {found.cache_group}" if found.cache_group else "its own"
    pools = "only those that are reserved for it" if found.isolated else "those that are not reserved for others"
    rows = (
        ("models", _models(found)),
        ("pools", pools),
        ("prefix cache", group),
        ("limits", limits(found.limits) or "none"),
        ("weight", f"{found.weight}, when requests have to wait"),
        ("records", "required, before a request goes anywhere" if found.recorded else "best effort"),
        ("state", "disabled: none of its keys opens anything" if found.disabled else "active"),
        ("created", moment(found.created)),
    )
    return _facts("TENANT", found.name, rows)


def keys(found: Iterable[KeyInfo], tenants: Mapping[str, TenantInfo], now: float) -> Sheet:
    """One row for each key, with what it may really call: that depends on its tenant, too."""
    return Sheet(
        columns=("ID", "TENANT", "LABEL", "SCOPES", "MODELS", "LIMITS", "STATE", "EXPIRES"),
        rows=tuple(_key_row(one, tenants.get(one.tenant, TenantInfo(one.tenant)), now) for one in found),
        empty="no keys; `tuneplex keys create --tenant NAME` makes one",
        flexible=frozenset({"LABEL", "SCOPES", "MODELS", "LIMITS", "EXPIRES"}),
    )


def _key_row(found: KeyInfo, tenant: TenantInfo, now: float) -> tuple[Cell, ...]:
    state, style = _state(found, tenant)
    return (
        Cell(found.id, "bold"),
        Cell(found.tenant),
        Cell(found.label),
        Cell(_list(found.scopes)),
        Cell(_models(tenant, found) if Scope.USE in found.scopes else ""),
        Cell(limits(found.limits)),
        Cell(state, style),
        Cell(_end(found, now), "yellow" if found.state is KeyState.ACTIVE and found.expires is not None else "dim"),
    )


def _state(found: KeyInfo, tenant: TenantInfo) -> tuple[str, str]:
    """A key's state, and how it looks; a tenant that is disabled takes its keys with it."""
    if found.state is KeyState.ACTIVE and tenant.disabled:
        return "disabled", "red"
    return found.state.value, _STATE_STYLES[found.state]


def _models(tenant: TenantInfo, found: KeyInfo | None = None) -> str:
    """What a tenant may call, or a key of it: `all`, `all adapters`, `base`, `base, acme-*`, `none`."""
    adapters = _reach(tenant.adapters, ANY if found is None else found.adapters)
    base = tenant.base and (found is None or found.base)
    if adapters == ANY:
        return "all" if base else "all adapters"
    return _list((*(("base",) if base else ()), *adapters)) or "none"


def _reach(theirs: tuple[str, ...], narrower: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns of a key within those of its tenant: a name must match one of each."""
    if theirs == ANY or not narrower:
        return narrower
    if narrower in {ANY, theirs} or not theirs:
        return theirs
    kept = [one for one in narrower if _WILD.search(one) or any(fnmatchcase(one, pattern) for pattern in theirs)]
    within = f" (of {_list(theirs)})" if any(_WILD.search(one) for one in kept) else ""
    return tuple(f"{one}{within if _WILD.search(one) else ''}" for one in kept)


def _end(found: KeyInfo, now: float) -> str:
    """When it ends, or when it did."""
    end = found.expires if found.revoked is None else found.revoked
    return "never" if end is None else distance(end, now)


def key(found: KeyInfo, tenant: TenantInfo, now: float) -> Sheet:
    """All about one key."""
    state, _style = _state(found, tenant)
    rows = (
        ("tenant", found.tenant),
        ("label", found.label),
        ("scopes", _list(found.scopes)),
        ("models", _models(tenant, found) if Scope.USE in found.scopes else "none, without the scope use"),
        ("limits", limits(found.limits) or "none"),
        ("tenant's limits", limits(tenant.limits)),
        ("state", f"{state}, with its tenant" if state == "disabled" else state),
        ("created", _when(found.created, now)),
        ("expires", "never" if found.expires is None else _when(found.expires, now)),
        ("revoked", "" if found.revoked is None else _when(found.revoked, now)),
        ("replaces", found.replaces or ""),
    )
    return _facts("KEY", found.id, (row for row in rows if row[1]))


def purpose(found: KeyInfo, tenant: TenantInfo) -> str:
    """What a key is good for, in one line."""
    models = f"; models {_models(tenant, found)}" if Scope.USE in found.scopes else ""
    return f"scopes {_list(found.scopes)}{models}"


def _facts(head: str, name: str, rows: Iterable[tuple[str, str]]) -> Sheet:
    return Sheet(
        columns=(head, name),
        rows=tuple((Cell(about, "bold"), Cell(text)) for about, text in rows),
        flexible=frozenset({name}),
    )


def _when(then: float, now: float) -> str:
    return f"{moment(then)} ({distance(then, now)})"


def _list(found: Iterable[str]) -> str:
    return ", ".join(found)


def doubts(fleet: FleetSpec, adapters: Iterable[str], *, tenant: str, isolated: bool = False) -> tuple[str, ...]:
    """What a person may not have meant: patterns that match nothing, and isolation without a pool for it."""
    names = [adapter.name for adapter in fleet.adapters]
    idle = [pattern for pattern in adapters if pattern != "*" and not any(fnmatchcase(one, pattern) for one in names)]
    lone = isolated and not any(tenant in pool.tenants for pool in fleet.pools)
    return (
        *(f"no adapter of the fleet matches {pattern!r} now" for pattern in idle),
        *(
            (f"no pool is reserved for {tenant} now, so its requests are refused (see `tenants` of a pool)",)
            if lone
            else ()
        ),
    )
