"""Tenants and keys for tests of the gateway."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from tuneplex.identity import Access, Key, Tenant

__all__ = ["access_of", "bearer", "key_of"]


def key_of(secret: str, tenant: str = "acme", **fields: Any) -> Key:  # noqa: ANN401 - the key's own
    """The key that clients send as `secret`; its id is `id-` and that."""
    return Key(f"id-{secret}", tenant, sha256(secret.encode()).hexdigest(), **fields)


def access_of(*known: Key | Tenant, generation: int = 1, salt: str = "salt") -> Access:
    """What a gateway knows: these, the default tenant, and every other tenant that a key names."""
    tenants = {one.name: one for one in known if isinstance(one, Tenant)}
    keys = tuple(one for one in known if isinstance(one, Key))
    for name in ("default", *(key.tenant for key in keys)):
        tenants.setdefault(name, Tenant(name))
    return Access(generation, required=bool(keys), salt=salt, tenants=tuple(tenants.values()), keys=keys)


def bearer(secret: str) -> dict[str, str]:
    """The header with a key, as `Front` and `Http` take it."""
    return {"authorization": f"Bearer {secret}"}
