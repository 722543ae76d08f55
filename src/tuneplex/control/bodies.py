"""What the admin API's routes for tenants, keys and limits take and give: the bodies, as JSON and as values."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tuneplex.identity import ANY, Key, KeyState, Limits, Scope, Tenant
from tuneplex.units import format_money

__all__ = [
    "Amount",
    "KeyChange",
    "KeyInfo",
    "KeyRotation",
    "KeyWish",
    "LimitUse",
    "LimitsInfo",
    "LimitsWish",
    "NewKey",
    "TenantChange",
    "TenantInfo",
    "TenantWish",
]

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Label = Annotated[str, msgspec.Meta(max_length=128)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 366 * 86400)]
Amount = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
Weight = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Money = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,7}(\.[0-9]{1,12})?( [A-Z]{3})?$")]


class LimitsWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits, see `identity.Limits`; what is not given stays as it is, and null removes a limit."""

    requests_per_minute: Amount | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_minute: Amount | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_day: Amount | msgspec.UnsetType | None = msgspec.UNSET
    concurrent: Amount | msgspec.UnsetType | None = msgspec.UNSET
    money_per_month: Money | msgspec.UnsetType | None = msgspec.UNSET
    cut_streams: bool | msgspec.UnsetType = msgspec.UNSET


class LimitsInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits as people see them.

    Attributes:
        requests_per_minute: Requests in any 60 seconds.
        tokens_per_minute: Tokens of prompts and completions in any 60 seconds.
        tokens_per_day: The same in a day of UTC.
        concurrent: Requests under way at a time.
        money_per_month: What requests may cost in a calendar month of UTC: a decimal, exactly.
        currency: Of this money.
        cut_streams: A stream ends when this money is gone; otherwise it must fit in what is left before it begins.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None
    money_per_month: str | None = None
    currency: str | None = None
    cut_streams: bool = False

    @classmethod
    def of(cls, limits: Limits, currency: str) -> LimitsInfo:
        """What may be shown of limits in a fleet with this currency."""
        money = limits.money_per_month
        shown = msgspec.structs.asdict(limits)
        if money is not None:
            shown |= {"money_per_month": format_money(money), "currency": currency or None}
        return cls(**shown)


class TenantWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to be made; see `identity.Tenant`."""

    name: Name
    adapters: tuple[Pattern, ...] = ANY
    base: bool = True
    isolated: bool = False
    cache_group: Name | None = None
    limits: LimitsWish = LimitsWish()
    weight: Weight = 1
    recorded: bool = False


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What shall be different about a tenant; what is not given stays. An empty `cache_group` leaves the group."""

    adapters: tuple[Pattern, ...] | msgspec.UnsetType = msgspec.UNSET
    base: bool | msgspec.UnsetType = msgspec.UNSET
    isolated: bool | msgspec.UnsetType = msgspec.UNSET
    cache_group: str | msgspec.UnsetType = msgspec.UNSET
    disabled: bool | msgspec.UnsetType = msgspec.UNSET
    limits: LimitsWish | msgspec.UnsetType = msgspec.UNSET
    weight: Weight | msgspec.UnsetType = msgspec.UNSET
    recorded: bool | msgspec.UnsetType = msgspec.UNSET


class TenantInfo(msgspec.Struct, frozen=True):
    """A tenant as people see it.

    Attributes:
        name: Unique in the fleet.
        adapters: Shell patterns of the adapters that its keys may call.
        base: Whether its keys may call the base.
        isolated: It is served only by pools that are reserved for it.
        cache_group: Tenants of the same group share the engines' prefix caches.
        disabled: None of its keys opens anything.
        created: Unix time, seconds.
        limits: Of all its keys together.
        weight: When requests have to wait, its share is to those of the others as the weights are.
        recorded: Its requests are refused unless it is on the disk first that they are let in.
    """

    name: str
    adapters: tuple[str, ...] = ANY
    base: bool = True
    isolated: bool = False
    cache_group: str = ""
    disabled: bool = False
    created: int = 0
    limits: LimitsInfo = LimitsInfo()
    weight: int = 1
    recorded: bool = False

    @classmethod
    def of(cls, tenant: Tenant, currency: str) -> TenantInfo:
        """What may be shown of a tenant in a fleet with this currency."""
        return cls(**{**msgspec.structs.asdict(tenant), "limits": LimitsInfo.of(tenant.limits, currency)})


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
    limits: LimitsInfo
    state: KeyState

    @classmethod
    def of(cls, key: Key, now: float, currency: str) -> KeyInfo:
        """What may be shown of a key at `now`, Unix time, in a fleet with this currency."""
        shown = {name: getattr(key, name) for name in cls.__struct_fields__ if name != "state"}
        return cls(**{**shown, "limits": LimitsInfo.of(key.limits, currency)}, state=key.state(now))


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
        month_money: What it has cost in this month of UTC, or has been reserved: a decimal, exactly.
        currency: Of this money; empty where nothing has a price.
        concurrent: Requests under way now.
        refused: Requests refused since the gateways started.
    """

    subject: str
    limits: LimitsInfo = LimitsInfo()
    requests: int = 0
    tokens: int = 0
    day_tokens: int = 0
    month_money: str = "0.00"
    currency: str = ""
    concurrent: int = 0
    refused: int = 0
