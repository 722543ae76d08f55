"""What the admin API's routes for tenants, keys and limits take and give: the bodies, as JSON and as values."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tuneplex.identity import ANY, Key, KeyState, Limits, Scope

__all__ = [
    "Amount",
    "KeyChange",
    "KeyInfo",
    "KeyRotation",
    "KeyWish",
    "LimitUse",
    "LimitsWish",
    "NewKey",
    "TenantChange",
    "TenantWish",
]

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Label = Annotated[str, msgspec.Meta(max_length=128)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 366 * 86400)]
Amount = Annotated[int, msgspec.Meta(ge=1, le=10**15)]


class LimitsWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits, see `identity.Limits`; what is not given stays as it is, and null removes a limit."""

    requests_per_minute: Amount | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_minute: Amount | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_day: Amount | msgspec.UnsetType | None = msgspec.UNSET
    concurrent: Amount | msgspec.UnsetType | None = msgspec.UNSET


class TenantWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to be made; see `identity.Tenant`."""

    name: Name
    adapters: tuple[Pattern, ...] = ANY
    base: bool = True
    isolated: bool = False
    cache_group: Name | None = None
    limits: LimitsWish = LimitsWish()


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What shall be different about a tenant; what is not given stays. An empty `cache_group` leaves the group."""

    adapters: tuple[Pattern, ...] | msgspec.UnsetType = msgspec.UNSET
    base: bool | msgspec.UnsetType = msgspec.UNSET
    isolated: bool | msgspec.UnsetType = msgspec.UNSET
    cache_group: str | msgspec.UnsetType = msgspec.UNSET
    disabled: bool | msgspec.UnsetType = msgspec.UNSET
    limits: LimitsWish | msgspec.UnsetType = msgspec.UNSET


class KeyWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be made; see `identity.Key`. `expires_in_s` counts from now; without it the key does not expire."""

    tenant: Name
    label: Label = ""
    scopes: tuple[Scope, ...] = (Scope.USE,)
    adapters: tuple[Pattern, ...] = ANY
    base: bool = True
    expires_in_s: Seconds | None = None
    limits: LimitsWish = LimitsWish()


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What shall be different about a key; what is not given stays."""

    label: Label | msgspec.UnsetType = msgspec.UNSET
    adapters: tuple[Pattern, ...] | msgspec.UnsetType = msgspec.UNSET
    base: bool | msgspec.UnsetType = msgspec.UNSET
    limits: LimitsWish | msgspec.UnsetType = msgspec.UNSET


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
    limits: Limits
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


class LimitUse(msgspec.Struct, frozen=True):
    """What a tenant, a key or a model has used of its limits, over all gateways.

    Attributes:
        subject: `tenant acme`, `key k3x…` or `model legal`.
        limits: Its limits.
        requests: In the last 60 seconds.
        tokens: In the last 60 seconds, used or reserved.
        day_tokens: On this day of UTC, used or reserved.
        concurrent: Requests under way now.
        refused: Requests refused since the gateways started.
    """

    subject: str
    limits: Limits
    requests: int = 0
    tokens: int = 0
    day_tokens: int = 0
    concurrent: int = 0
    refused: int = 0
