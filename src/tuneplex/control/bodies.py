"""What the admin API's routes for tenants and keys take and give: the bodies, as JSON and as values."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tuneplex.identity import ANY, Key, KeyState, Scope

__all__ = ["KeyInfo", "KeyRotation", "KeyWish", "NewKey", "TenantChange", "TenantWish"]

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Label = Annotated[str, msgspec.Meta(max_length=128)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 366 * 86400)]


class TenantWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to be made; see `identity.Tenant`."""

    name: Name
    adapters: tuple[Pattern, ...] = ANY
    base: bool = True
    isolated: bool = False
    cache_group: Name | None = None


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What shall be different about a tenant; what is not given stays. An empty `cache_group` leaves the group."""

    adapters: tuple[Pattern, ...] | msgspec.UnsetType = msgspec.UNSET
    base: bool | msgspec.UnsetType = msgspec.UNSET
    isolated: bool | msgspec.UnsetType = msgspec.UNSET
    cache_group: str | msgspec.UnsetType = msgspec.UNSET
    disabled: bool | msgspec.UnsetType = msgspec.UNSET


class KeyWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be made; see `identity.Key`. `expires_in_s` counts from now; without it the key does not expire."""

    tenant: Name
    label: Label = ""
    scopes: tuple[Scope, ...] = (Scope.USE,)
    adapters: tuple[Pattern, ...] = ANY
    base: bool = True
    expires_in_s: Seconds | None = None


class KeyRotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a key is replaced: the old one goes on for `grace_s`; the new one expires after `expires_in_s`, or never."""

    grace_s: Seconds = 86400
    expires_in_s: Seconds | None = None


class KeyInfo(msgspec.Struct, frozen=True):
    """A key as people see it: all of `identity.Key` but the digest, and its state."""

    id: str
    tenant: str
    label: str
    scopes: tuple[Scope, ...]
    adapters: tuple[str, ...]
    base: bool
    created: int
    expires: int | None
    revoked: int | None
    replaces: str | None
    state: KeyState

    @classmethod
    def of(cls, key: Key, now: float) -> KeyInfo:
        """What may be shown of a key at `now`, Unix time."""
        shown = {name: getattr(key, name) for name in cls.__struct_fields__ if name != "state"}
        return cls(**shown, state=key.state(now))


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made. `secret` is what clients send; it is told this once and kept nowhere."""

    key: KeyInfo
    secret: str

    def __repr__(self) -> str:
        """Without the secret, so that it cannot slip into a log."""
        return f"NewKey({self.key.id!r})"
