"""What a wish makes of tenants and keys, and which wishes make no sense: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from tuneplex.control.bodies import KeyChange, KeyRotation, KeyWish, LimitsWish, TenantChange, TenantWish
from tuneplex.errors import BadRequest, StoreConflict
from tuneplex.identity import Access, Key, KeyState, Limits, Scope, Tenant
from tuneplex.units import MOST_MONEY, PICOS, parse_money

__all__ = [
    "Terms",
    "changed_key",
    "changed_tenant",
    "holds_something",
    "key_terms",
    "new_tenant",
    "next_generation",
    "rotation",
    "same",
    "still_required",
    "without_expired",
]

_V = TypeVar("_V", Tenant, Key)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_MILLISECONDS = 1000


class Terms(msgspec.Struct, frozen=True):
    """All of a key but what is random about it, and what becomes of the key that it replaces.

    Attributes:
        tenant: See `identity.Key`.
        label: See `identity.Key`.
        scopes: See `identity.Key`.
        adapters: See `identity.Key`.
        base: See `identity.Key`.
        expires: See `identity.Key`.
        replaces: See `identity.Key`.
        limits: See `identity.Key`.
        old_ends: When the key that it replaces expires, Unix time.
    """

    tenant: str
    label: str
    scopes: tuple[Scope, ...]
    adapters: tuple[str, ...]
    base: bool
    expires: int | None = None
    replaces: str | None = None
    limits: Limits = Limits()
    old_ends: int | None = None


def new_tenant(wish: TenantWish, now: int, currency: str = "") -> Tenant:
    """The tenant that was wished for, in a fleet whose prices are in this currency; empty where nothing has a price.

    Raises:
        BadRequest: The wish makes no sense.
    """
    _check_name(wish.name, "name")
    _check_patterns(wish.adapters)
    if wish.cache_group is not None:
        _check_name(wish.cache_group, "cache_group")
    return Tenant(
        name=wish.name,
        adapters=wish.adapters,
        base=wish.base,
        isolated=wish.isolated,
        cache_group=wish.cache_group or "",
        created=now,
        limits=_limits(Limits(), wish.limits, currency),
        weight=wish.weight,
        recorded=wish.recorded,
    )


def changed_tenant(tenant: Tenant, change: TenantChange, currency: str = "") -> Tenant:
    """The tenant with what shall be different; see `new_tenant` for the currency.

    Raises:
        BadRequest: The change makes no sense, or there is none in it.
    """
    given = _given(change)
    if given.get("cache_group"):
        _check_name(given["cache_group"], "cache_group")
    return _with(tenant, given, currency)


def changed_key(key: Key, change: KeyChange, now: float, currency: str = "") -> Key:
    """The key with what shall be different; see `new_tenant` for the currency.

    Raises:
        BadRequest: The change makes no sense, or there is none in it.
        StoreConflict: The key opens nothing any more.
    """
    given = _given(change)
    _check_shown(given.get("label", ""), "label")
    state = key.state(now)
    if state is not KeyState.ACTIVE:
        raise StoreConflict(f"key {key.id} is {state}, and stays as it is")
    return _with(key, given, currency)


def _given(change: TenantChange | KeyChange) -> dict[str, Any]:
    """What a change says.

    Raises:
        BadRequest: Nothing, or a pattern that cannot be shown.
    """
    found = {name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not msgspec.UNSET}
    if found in ({}, {"limits": LimitsWish()}):
        raise BadRequest(f"nothing to change: give one of {', '.join(change.__struct_fields__)}")
    _check_patterns(found.get("adapters", ()))
    return found


def _with(one: _V, given: dict[str, Any], currency: str) -> _V:
    if "limits" in given:
        given = {**given, "limits": _limits(one.limits, given["limits"], currency)}
    return msgspec.structs.replace(one, **given)


def _limits(before: Limits, wish: LimitsWish, currency: str) -> Limits:
    """Limits with what shall be different."""
    wished = {name: value for name in wish.__struct_fields__ if (value := getattr(wish, name)) is not msgspec.UNSET}
    if isinstance(wish.money_per_month, str):
        wished["money_per_month"] = _money(wish.money_per_month, currency)
    found = msgspec.structs.replace(before, **wished)
    if found.cut_streams and found.money_per_month is None:
        if wish.cut_streams is True:
            raise BadRequest("streams are cut by a limit in money, and there is none", param="limits.cut_streams")
        return msgspec.structs.replace(found, cut_streams=False)
    return found


def _money(text: str, currency: str) -> int:
    """A limit in money, picos."""
    param = "limits.money_per_month"
    picos, given = parse_money(text)
    if not currency:
        words = "nothing in this fleet has a price: add `prices` to the fleet file and `tuneplex apply` it first"
        raise BadRequest(words, param=param, code="no_prices")
    if given not in {"", currency}:
        raise BadRequest(f"prices are in {currency} here, not in {given}", param=param)
    if not 0 < picos <= MOST_MONEY:
        raise BadRequest(f"a limit in money is more than 0 and at most {MOST_MONEY // PICOS}", param=param)
    return picos


def key_terms(wish: KeyWish, tenants: Iterable[Tenant], now: int, currency: str = "") -> Terms:
    """The terms of a key that was wished for; see `new_tenant` for the currency.

    Raises:
        BadRequest: The wish makes no sense.
    """
    if wish.tenant not in {tenant.name for tenant in tenants}:
        raise BadRequest(f"there is no tenant {wish.tenant!r}", param="tenant", code="unknown_tenant")
    if not wish.scopes:
        raise BadRequest("a key needs a scope", param="scopes")
    if len(set(wish.scopes)) < len(wish.scopes):
        raise BadRequest("a scope is named twice", param="scopes")
    _check_patterns(wish.adapters)
    _check_shown(wish.label, "label")
    return Terms(
        tenant=wish.tenant,
        label=wish.label,
        scopes=wish.scopes,
        adapters=wish.adapters,
        base=wish.base,
        expires=_ends(wish.expires_in_s, now),
        limits=_limits(Limits(), wish.limits, currency),
    )


def rotation(old: Key, wish: KeyRotation, now: int) -> Terms:
    """The terms of the key that replaces `old`. The old one never lasts longer than it would have without that.

    Raises:
        BadRequest: The wish makes no sense.
        StoreConflict: The old key opens nothing any more, so a new one in its place would open doors again.
    """
    state = old.state(now)
    if state is not KeyState.ACTIVE:
        raise StoreConflict(f"key {old.id} is {state}: make a new one instead")
    end = now + wish.grace_s
    return Terms(
        tenant=old.tenant,
        label=old.label,
        scopes=old.scopes,
        adapters=old.adapters,
        base=old.base,
        expires=_ends(wish.expires_in_s, now),
        replaces=old.id,
        limits=old.limits,
        old_ends=end if old.expires is None else min(end, old.expires),
    )


def without_expired(access: Access, now: float) -> Access:
    """The same without the keys that have expired by now; the very same value when there is none."""
    alive = tuple(key for key in access.keys if key.state(now) is KeyState.ACTIVE)
    return access if len(alive) == len(access.keys) else msgspec.structs.replace(access, keys=alive)


def holds_something(access: Access | None) -> bool:
    """Whether anything would be lost if an empty store took the place of the one that this was read from."""
    return access is not None and (access.required or len(access.tenants) > 1)


def still_required(fresh: Access, last: Access | None) -> Access:
    """What was just read, and keys are asked for if they were before.

    A database that was lost and begins anew has never had a key. That must not open the fleet to everybody.
    """
    if last is None or not last.required:
        return fresh
    return msgspec.structs.replace(fresh, required=True)


def next_generation(last: Access | None, now: float) -> int:
    """The generation for what is published next.

    Control numbers what it publishes by itself, since the database's own number falls when an older backup is
    restored. Milliseconds since 1970 are above all that an earlier control has published; should the clock have been
    set back, the last one published (which outlives control in the snapshot) still is the floor.
    """
    floor = 0 if last is None else last.generation + 1
    return max(floor, int(now * _MILLISECONDS))


def same(one: Access, other: Access) -> bool:
    """Whether two say the same, whatever their generations."""
    return msgspec.structs.replace(one, generation=other.generation) == other


def _ends(seconds: int | None, now: int) -> int | None:
    if seconds is None:
        return None
    if seconds == 0:
        raise BadRequest("a key that expires at once opens nothing; leave this out for one that never does",
                         param="expires_in_s")  # fmt: skip
    return now + seconds


def _check_name(name: str, param: str) -> None:
    """The body's schema leaves a newline at the end through, as `$` does."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} is no name: up to 63 lower-case letters, digits, `.`, `_` and `-`, the first a letter or digit",
            param=param,
        )


def _check_patterns(patterns: Iterable[str]) -> None:
    for at, pattern in enumerate(patterns):
        _check_shown(pattern, f"adapters[{at}]")


def _check_shown(text: str, param: str) -> None:
    """Terminals obey control characters, so nothing that people are shown may hold any."""
    if not text.isprintable():
        raise BadRequest(f"{text!r} holds characters that cannot be printed", param=param)
