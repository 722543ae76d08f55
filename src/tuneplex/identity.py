"""Who may call what: tenants, keys, and what a caller turns out to be. Frozen values, like those of `types`.

None of them can be part of a cycle, so they are hidden from the garbage collector (`gc=False`): with very many keys it
would look at all of them again and again, and a gateway's streams would stand still meanwhile.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = [
    "ANY",
    "DEFAULT_TENANT",
    "Access",
    "Grant",
    "Key",
    "KeyState",
    "Limits",
    "Principal",
    "Scope",
    "Subject",
    "Tenant",
]

DEFAULT_TENANT = "default"
ANY = ("*",)


class Scope(StrEnum):
    """What a key is for."""

    USE = "use"
    USAGE = "usage"
    ADMIN = "admin"


class KeyState(StrEnum):
    """Whether a key still opens anything."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Limits(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How much may be asked; None stands for no limit.

    Attributes:
        requests_per_minute: Requests in any 60 seconds.
        tokens_per_minute: Tokens of prompts and completions in any 60 seconds.
        tokens_per_day: The same in a day of UTC.
        concurrent: Requests under way at a time.
        money_per_month: What requests cost in a calendar month of UTC, picos (10^-12) of the fleet's currency.
        cut_streams: A stream ends when the money is gone; otherwise it must fit in what is left before it begins.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None
    money_per_month: int | None = None
    cut_streams: bool = False


class Subject(msgspec.Struct, frozen=True, gc=False):
    """Somebody or something that has limits.

    Attributes:
        name: `tenant acme`, `key k3x…` or `model legal`: unique, and shown in messages.
        limits: Of all gateways together.
    """

    name: str
    limits: Limits


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """Who pays, and what is theirs.

    Attributes:
        name: Unique in the fleet.
        adapters: Shell patterns of the adapters that its keys may call.
        base: Whether its keys may call the base.
        isolated: It is served only by pools that are reserved for it.
        cache_group: Tenants of the same group share the engines' prefix caches; without one, a tenant shares
            with nobody, and nobody can time another one's prompts.
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
    limits: Limits = Limits()
    weight: int = 1
    recorded: bool = False


class Key(msgspec.Struct, frozen=True, gc=False):
    """A credential of a tenant, without the secret itself.

    Attributes:
        id: Public: may stand in logs. Unique for ever.
        tenant: Whose.
        sha256: Hex digest of what the client sends.
        label: For people.
        scopes: What it is for.
        adapters: Shell patterns of the adapters that it may call, of those that its tenant may.
        base: Whether it may call the base, if its tenant may.
        created: Unix time, seconds.
        expires: From when on it opens nothing, Unix time.
        revoked: Since when it opens nothing, Unix time.
        replaces: The id of the key that it was rotated from.
        limits: Its own, beside its tenant's.
    """

    id: str
    tenant: str
    sha256: str
    label: str = ""
    scopes: tuple[Scope, ...] = (Scope.USE,)
    adapters: tuple[str, ...] = ANY
    base: bool = True
    created: int = 0
    expires: int | None = None
    revoked: int | None = None
    replaces: str | None = None
    limits: Limits = Limits()

    def state(self, now: float) -> KeyState:
        """Whether it still opens anything at `now`, Unix time."""
        if self.revoked is not None:
            return KeyState.REVOKED
        return KeyState.EXPIRED if self.expires is not None and self.expires <= now else KeyState.ACTIVE


class Access(msgspec.Struct, frozen=True, tag="access"):
    """All that a gateway knows of keys; replaced as a whole, never changed.

    Attributes:
        generation: Grows with every change.
        required: Nobody may call without a key. Once a first key was made it stays so, whatever becomes of the keys.
        salt: What the prefix caches' salts are derived from; secret, the same for the whole fleet and for ever.
        tenants: All of them.
        keys: Those that are not revoked and have not expired long ago.
    """

    generation: int = 0
    required: bool = False
    salt: str = ""
    tenants: tuple[Tenant, ...] = ()
    keys: tuple[Key, ...] = ()

    def __repr__(self) -> str:
        """Without the salt, so that it cannot slip into a log."""
        return f"Access(generation={self.generation}, {len(self.tenants)} tenants, {len(self.keys)} keys)"


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What may be called: a model must be allowed by all of it.

    Attributes:
        adapters: Each a set of shell patterns; an adapter's name must match one of each set.
        base: Whether the base may be called.
    """

    adapters: tuple[tuple[str, ...], ...] = ()
    base: bool = True


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Who calls, after authentication.

    Attributes:
        tenant: Who pays.
        key_id: The public id of the key; `none` where no key is asked for.
        scopes: What the key is for.
        grant: What it may call.
        isolated: It is served only by pools that are reserved for its tenant.
        cache_salt: Keeps its prompts apart in the engines' prefix caches; empty when there is nothing to keep apart.
        expires: From when on it is nobody, Unix time.
        subjects: Whose limits it counts against: its tenant and its key, as far as they have any.
        weight: Of its tenant.
        recorded: As its tenant.
    """

    tenant: str
    key_id: str
    scopes: tuple[Scope, ...] = (Scope.USE,)
    grant: Grant = Grant()
    isolated: bool = False
    cache_salt: str = ""
    expires: int | None = None
    subjects: tuple[Subject, ...] = ()
    weight: int = 1
    recorded: bool = False
